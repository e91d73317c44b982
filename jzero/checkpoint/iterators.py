"""Positions of data iterators, as JSON.

An iterator takes part in a checkpoint if it has `get_state` and `set_state`, as those
of grain do; its states are texts, bytes, numbers, and dicts and lists of these. Lives
here: checking, encoding, and what another number of processes means. May import:
errors. Read next: `checkpointer.py`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from jzero.errors import CheckpointError, StateError

__all__ = ["decode_state", "encode_state", "pick_state"]

_BYTES = "base64"


def encode_state(iterator: Any) -> str:
    """Returns the position of an iterator as JSON text.

    Raises:
        StateError: It cannot tell its position, or not as plain data.
    """
    if not callable(getattr(iterator, "get_state", None)):
        raise StateError(
            f"data= must have get_state() and set_state(), as iterators of grain do; "
            f"a {type(iterator).__name__} has not.\n"
            "Remedy: pass iter(dataset) of grain, or give your iterator both methods."
        )
    state = iterator.get_state()
    try:
        return json.dumps(_plain(state))
    except TypeError as error:
        raise StateError(
            f"the position of a {type(iterator).__name__} is not plain data: {error}.\n"
            "Remedy: return texts, bytes, numbers, dicts and lists from get_state()."
        ) from error


def decode_state(text: str) -> Any:
    """Returns what `get_state` returned; tuples come back as lists."""
    return _rich(json.loads(text))


def pick_state(texts: Mapping[str, str], own_name: str, num_processes: int) -> Any:
    """Chooses this process's position among those that were saved.

    Args:
        texts: Text by file name.
        own_name: The file of this process, if as many processes saved it.
        num_processes: How many processes there are now.

    Raises:
        CheckpointError: Another number of processes saved it, and each was elsewhere.
    """
    if own_name in texts:
        return decode_state(texts[own_name])
    if len(set(texts.values())) == 1:
        return decode_state(next(iter(texts.values())))
    raise CheckpointError(
        f"data= was saved by {len(texts)} processes, each at its own position, and "
        f"cannot be continued by {num_processes}.\n"
        "Remedy: restore without data=, and set the new iterators to where the step "
        "returned says."
    )


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a dict with keys that are no texts")
        if set(value) == {_BYTES}:
            raise TypeError(f"a dict whose only key is {_BYTES!r}")
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.generic):
        return value.item()
    return value


def _rich(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {_BYTES}:
            return base64.b64decode(value[_BYTES])
        return {key: _rich(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_rich(entry) for entry in value]
    return value
