"""Positions of iterators survive as they are, or an error says why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jzero
from jzero.checkpoint.iterators import decode_state, encode_state, pick_state


class Position:
    def __init__(self, state: Any) -> None:
        self.state = state

    def get_state(self) -> Any:
        return self.state


@pytest.mark.parametrize(
    "state",
    [b"\x00\xff{}", {"next_index": 7, "inner": {"a": [1, "x", None]}}, 3, "text", []],
)
def test_what_is_saved_is_restored(state: Any) -> None:
    assert decode_state(encode_state(Position(state))) == state


def test_numbers_of_numpy_become_numbers() -> None:
    assert decode_state(encode_state(Position({"n": np.int64(4)}))) == {"n": 4}


@pytest.mark.parametrize(
    ("iterator", "part"),
    [
        (iter([1]), "get_state"),
        (Position(object()), "not plain data"),
        (Position({1: 2}), "no texts"),
        (Position({"base64": "x"}), "only key"),
    ],
)
def test_what_cannot_be_saved_is_refused(iterator: Any, part: str) -> None:
    with pytest.raises(jzero.StateError, match=part):
        encode_state(iterator)


def test_another_number_of_processes_takes_a_position_that_all_shared() -> None:
    texts = {"process_0-of-2.json": "5", "process_1-of-2.json": "5"}
    assert pick_state(texts, "process_0-of-1.json", 1) == 5
    texts["process_1-of-2.json"] = "6"
    assert pick_state(texts, "process_1-of-2.json", 2) == 6
    with pytest.raises(jzero.CheckpointError, match="saved by 2 processes"):
        pick_state(texts, "process_0-of-4.json", 4)
