"""What the names on a leaf's path say about its role.

Lives here: the vocabulary of state containers (`params`, `opt_state`, `batch_stats`,
`ema`) and the scan of a path for the first word that decides. May import:
`leaves.py`. Read next: `roles.py`, which weighs names against structure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jzero.plan.leaves import LeafFacts

__all__ = ["Hint", "Meaning", "read_names", "read_state_names", "words"]

Meaning = Literal["params", "optimizer", "copy", "stats", "unknown"]

# Each word is looked for among the words of a name: `enc_opt_state` holds `opt`.
_PARAM_WORDS = frozenset({"params", "param", "parameters"})
_OPTIMIZER_WORDS = frozenset(
    {"opt", "optim", "optimizer", "optimizers", "tx", "optax"}
    | {"momentum", "momenta", "velocity", "moments"}
)
_COPY_WORDS = frozenset(
    {"ema", "target", "slow", "avg", "average", "averaged", "polyak", "swa"}
    | {"old", "prev", "previous", "teacher", "shadow", "best"}
)
_STATS_WORDS = frozenset({"stats", "stat", "metrics"})

# Whole names, too general to be trusted as one word among several.
_STATS_NAMES = frozenset(
    {"cache", "buffers", "intermediates", "loss_scale", "dynamic_scale", "scaler"}
)
_PARAM_NAMES = frozenset({"weights", "master_weights", "trainable", "frozen"})
_PARAM_ARG_NAMES = frozenset({"model", "variables", "network", "net", "module"})
# Fields of optimizer records. As a dict key the same name may well be a layer (the
# `mu` head of a variational autoencoder), so these count only as attributes.
_OPTIMIZER_FIELDS = frozenset(
    {"mu", "nu", "trace", "acc_grads", "sum_of_squares", "v_row", "v_col"}
    | {"inner_state", "inner_states", "inner_opt_state", "base_optimizer_state"}
    | {"fast_state", "hyperparams"}
    | {"mu_scales", "nu_scales", "masters"}
)
# Containers between the root of the parameters and what an optimizer mirrors.
_WRAPPERS = frozenset({"params", "fast", "model"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """What the names on a path say.

    Attributes:
        meaning: The kind of container that the leaf lies in.
        root: How many of the leaf's keys lead to the container. 0 when the name
            of the argument decided, or nothing did.
    """

    meaning: Meaning
    root: int = 0

    def tails(self, leaf: LeafFacts) -> tuple[tuple[str, ...], ...]:
        """Returns the path endings by which a copy of a parameter is known.

        An optimizer may have been set up on the container, on what it holds, or
        on the collection inside, so there are up to three.
        """
        starts = {self.root, max(self.root - 1, 0)}
        if len(leaf.keys) > self.root + 1 and leaf.keys[self.root] in _WRAPPERS:
            starts.add(self.root + 1)
        return tuple(leaf.keys[start:] for start in sorted(starts))


def words(name: str) -> frozenset[str]:
    """Splits a name into its words.

    Example:
        >>> sorted(words("enc_opt_state"))
        ['enc', 'opt', 'state']
    """
    return frozenset(re.split(r"[^a-z0-9]+", name.lower()))


def read_names(leaf: LeafFacts, arg_name: str) -> Hint:
    """Finds the first name on a leaf's path that tells its container.

    The scan starts at the argument's name, so that `params['opt']['kernel']` is a
    parameter of a layer called `opt`, and `opt_state[0].mu['params']` is not one.

    Args:
        leaf: The leaf.
        arg_name: The name of the argument that holds it.

    Example:
        >>> import numpy as np
        >>> leaf = LeafFacts(
        ...     path="state.params['w']", keys=("params", "w"), arg=0,
        ...     shape=(4,), dtype=np.dtype("f4"), attrs=(True, False),
        ... )
        >>> read_names(leaf, "state")
        Hint(meaning='params', root=1)
    """
    keys = leaf.keys
    first = keys[0] if keys else ""
    meaning = _meaning(arg_name, is_attr=True)
    is_params_arg = meaning == "params" or arg_name.lower() in _PARAM_ARG_NAMES
    if is_params_arg:
        # A collection of variables, or an nnx model with its optimizer inside.
        inner = _meaning(first, is_attr=False)
        is_trusted = meaning != "params" or first == "batch_stats"
        if inner == "params" or (is_trusted and inner in ("stats", "optimizer")):
            return Hint(meaning=inner, root=1)
        return Hint(meaning="params")
    if meaning == "optimizer" and first == "model":
        return Hint(meaning="params", root=1)
    if meaning != "unknown":
        return Hint(meaning=meaning)
    for index, key in enumerate(keys):
        is_attr = not leaf.attrs or leaf.attrs[index]
        # The last key names the leaf itself, which says nothing as a dict key.
        if index == len(keys) - 1 and index > 0 and not is_attr:
            break
        meaning = _meaning(key, is_attr=is_attr)
        if meaning != "unknown":
            return Hint(meaning=meaning, root=index + 1)
    return Hint(meaning="unknown")


def read_state_names(
    leaves: Sequence[LeafFacts], arg_names: Sequence[str]
) -> list[Hint]:
    """Reads the names on all paths of a state.

    Fields that tell nothing by themselves (`v` of adafactor, `z` of schedule-free)
    follow the optimizer's fields beside them in the same record.

    Args:
        leaves: The leaves of all state arguments.
        arg_names: The name of each argument, by index.
    """
    hints = [read_names(leaf, arg_names[leaf.arg]) for leaf in leaves]
    is_single = len({leaf.arg for leaf in leaves}) == 1
    records: set[tuple[int, tuple[str, ...]]] = set()
    for leaf, hint in zip(leaves, hints, strict=True):
        at = hint.root - 1
        if hint.meaning != "optimizer" or at < 0 or (at == 0 and is_single):
            continue
        is_field = not leaf.attrs or leaf.attrs[at]
        if is_field and leaf.keys[at].lower() in _OPTIMIZER_FIELDS:
            records.add((leaf.arg, leaf.keys[:at]))
    lengths = sorted({len(keys) for _, keys in records})

    def is_beside(leaf: LeafFacts) -> bool:
        return any((leaf.arg, leaf.keys[:length]) in records for length in lengths)

    return [
        Hint(meaning="optimizer")
        if hint.meaning == "unknown" and is_beside(leaf)
        else hint
        for leaf, hint in zip(leaves, hints, strict=True)
    ]


def _meaning(name: str, *, is_attr: bool) -> Meaning:
    """Returns what one name says about the leaves below it."""
    lower = name.lower()
    found = words(name)
    if found & _STATS_WORDS or lower in _STATS_NAMES:
        return "stats"
    if found & _OPTIMIZER_WORDS or (is_attr and lower in _OPTIMIZER_FIELDS):
        return "optimizer"
    if found & _COPY_WORDS:
        return "copy"
    if "hyper" in found:
        return "unknown"
    if found & _PARAM_WORDS or lower in _PARAM_NAMES:
        return "params"
    return "unknown"
