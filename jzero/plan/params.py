"""Which leaves of a state are its parameters.

Lives here: the search by names and structure, and the user's own selection. May
import: `errors`, `config`, `leaves.py`, `names.py`, `mirrors.py`. Read next:
`roles.py`, which gives every other leaf its role.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jzero.config import ParamsSelector
from jzero.errors import ParamsError, format_problem
from jzero.plan.leaves import LeafFacts, describe_type, is_inexact
from jzero.plan.mirrors import EndingIndex, find_mirror_trees
from jzero.plan.names import Hint

__all__ = ["FoundParam", "find_params", "select_params"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundParam:
    """A parameter that was found.

    Attributes:
        why: How it was found.
        tails: The path endings by which its copies are known.
    """

    why: str
    tails: tuple[tuple[str, ...], ...]


def find_params(
    leaves: Sequence[LeafFacts], names: Sequence[Hint]
) -> dict[int, FoundParam]:
    """Finds the parameters without a selector."""
    named = {
        index: FoundParam(why="in a tree of parameters", tails=names[index].tails(leaf))
        for index, leaf in enumerate(leaves)
        if names[index].meaning == "params" and is_inexact(leaf.dtype)
    }
    named = _without_slow_weights(leaves, names, named)
    unknown = [
        index
        for index, leaf in enumerate(leaves)
        if names[index].meaning == "unknown" and is_inexact(leaf.dtype)
    ]
    in_optimizer = [
        leaf
        for index, leaf in enumerate(leaves)
        if names[index].meaning == "optimizer" and is_inexact(leaf.dtype)
    ]
    repeated = _repeated(leaves, unknown, in_optimizer)
    if named:
        statistics = _batch_statistics(leaves, named, in_optimizer)
        named = {i: param for i, param in named.items() if i not in statistics}
        taken = {
            (tail, leaves[i].shape)
            for i, param in named.items()
            for tail in param.tails
        }
        for index, start in repeated.items():
            leaf = leaves[index]
            if start < len(leaf.keys) and (leaf.keys[start:], leaf.shape) not in taken:
                named[index] = _repeated_param(leaf, start)
        return named
    unknown = [index for index in unknown if leaves[index].shape]
    if not repeated:
        deeper = find_mirror_trees([leaves[index] for index in unknown])
        mirrors = [leaves[unknown[position]] for position in deeper]
        rest = [index for at, index in enumerate(unknown) if at not in deeper]
        repeated = _repeated(leaves, rest, mirrors)
        unknown = rest if repeated else unknown
        in_optimizer = mirrors
    if repeated:
        return _with_neighbours(leaves, unknown, repeated, in_optimizer)
    return _all_floats(leaves, names)


def _repeated(
    leaves: Sequence[LeafFacts],
    candidates: Iterable[int],
    in_optimizer: Sequence[LeafFacts],
) -> dict[int, int]:
    """Maps candidates that the optimizer repeats to the start of the ending.

    Of two candidates with one ending, the one nearer to the root is the parameter
    and the other a copy (the `z` of schedule-free).
    """
    index_of = EndingIndex(in_optimizer)
    found: list[tuple[int, int]] = []
    for index in candidates:
        start = index_of.start_of_repeated(leaves[index])
        if start is not None:
            found.append((start, index))
    # The same shape alone is a clue only where no path tells more.
    by_path = [(start, i) for start, i in found if start < len(leaves[i].keys)]
    nearest: dict[tuple[tuple[str, ...], tuple[int, ...]], int] = {}
    kept: dict[int, int] = {}
    for start, index in sorted(by_path or found):
        ending = (leaves[index].keys[start:], leaves[index].shape)
        if nearest.setdefault(ending, start) == start:
            kept[index] = start
    return dict(sorted(kept.items()))


def _with_neighbours(
    leaves: Sequence[LeafFacts],
    unknown: Sequence[int],
    repeated: dict[int, int],
    in_optimizer: Sequence[LeafFacts],
) -> dict[int, FoundParam]:
    """Adds the unrepeated leaves of the trees that hold repeated ones."""
    roots = {
        (leaves[index].arg, leaves[index].keys[:start]): start
        for index, start in repeated.items()
    }
    starts = sorted(set(roots.values()))
    params = {
        index: _repeated_param(leaves[index], start)
        for index, start in repeated.items()
    }
    for index in unknown:
        leaf = leaves[index]
        start = next((s for s in starts if (leaf.arg, leaf.keys[:s]) in roots), None)
        if index not in params and start is not None and leaf.shape:
            params[index] = FoundParam(
                why="beside parameters; no optimizer state of its own",
                tails=(leaf.keys[start:],),
            )
    statistics = _batch_statistics(leaves, params, in_optimizer)
    return {i: params[i] for i in sorted(params) if i not in statistics}


def _repeated_param(leaf: LeafFacts, start: int) -> FoundParam:
    return FoundParam(
        why="an optimizer's state repeats its path and shape",
        tails=(leaf.keys[start:],),
    )


def _all_floats(
    leaves: Sequence[LeafFacts], names: Sequence[Hint]
) -> dict[int, FoundParam]:
    """Takes every float array, or float scalar if there is no array."""
    floats = [
        index
        for index, leaf in enumerate(leaves)
        if names[index].meaning in ("unknown", "copy") and is_inexact(leaf.dtype)
    ]
    # A copy's name says something only beside what it copies.
    floats = [i for i in floats if names[i].meaning == "unknown"] or floats
    arrays = [index for index in floats if leaves[index].shape] or floats
    statistics = _batch_statistics(leaves, arrays, ())
    return {
        index: FoundParam(
            why="a float array, and no optimizer state tells otherwise",
            tails=(leaves[index].keys, leaves[index].keys[1:])
            if len(leaves[index].keys) > 1
            else (leaves[index].keys,),
        )
        for index in arrays
        if index not in statistics
    }


def _batch_statistics(
    leaves: Sequence[LeafFacts],
    candidates: Iterable[int],
    in_optimizer: Sequence[LeafFacts],
) -> frozenset[int]:
    """Finds running means and variances inside an nnx model.

    They are twins called `mean` and `var`, and no optimizer repeats them.
    """
    index_of = EndingIndex(in_optimizer)
    twins: dict[tuple[object, ...], list[int]] = {}
    for index in candidates:
        leaf = leaves[index]
        if leaf.keys and leaf.keys[-1] in ("mean", "var"):
            place = (leaf.arg, leaf.keys[:-1], leaf.shape)
            twins.setdefault(place, []).append(index)
    return frozenset(
        index
        for pair in twins.values()
        if len(pair) == 2
        for index in pair
        if index_of.start_of_repeated(leaves[index]) is None
    )


def _without_slow_weights(
    leaves: Sequence[LeafFacts], names: Sequence[Hint], named: dict[int, FoundParam]
) -> dict[int, FoundParam]:
    """Leaves out the slow half of `optax.LookaheadParams`: a copy of the fast."""
    places = {(leaves[i].arg, leaves[i].keys, leaves[i].shape) for i in named}

    def is_slow(index: int) -> bool:
        leaf, root = leaves[index], names[index].root
        if leaf.keys[root : root + 1] != ("slow",) or not all(leaf.attrs[root:][:1]):
            return False
        twin = (*leaf.keys[:root], "fast", *leaf.keys[root + 1 :])
        return (leaf.arg, twin, leaf.shape) in places

    return {index: param for index, param in named.items() if not is_slow(index)}


def select_params(
    leaves: Sequence[LeafFacts], names: Sequence[Hint], selector: ParamsSelector
) -> dict[int, FoundParam]:
    """Returns the leaves that the selector picks."""
    paths = [(leaf.path, describe_type(leaf)) for leaf in leaves]
    picked: set[int] = set()
    for text, matches in _predicates(selector):
        matched = {i for i, leaf in enumerate(leaves) if matches(leaf.path)}
        if not matched:
            raise ParamsError(
                format_problem(
                    f"ZeroConfig(params=...): {text} matches no leaf of the state:",
                    paths,
                    "match the paths as they are written here; brackets and dots "
                    "are escaped in a regular expression.",
                )
            )
        picked |= matched
    copies = {i for i in picked if names[i].meaning in ("optimizer", "copy")}
    picked = (picked - copies) or picked
    wrong = [i for i in sorted(picked) if not is_inexact(leaves[i].dtype)]
    if wrong:
        raise ParamsError(
            format_problem(
                "ZeroConfig(params=...) picks leaves that cannot be trained, since "
                "they are not floats:",
                [paths[index] for index in wrong],
                "narrow the selection.",
            )
        )
    return {
        index: FoundParam(
            why="picked by ZeroConfig(params=...)",
            tails=(*names[index].tails(leaves[index]), leaves[index].keys[1:])
            if len(leaves[index].keys) > 1
            else (leaves[index].keys,),
        )
        for index in sorted(picked)
    }


def _predicates(
    selector: ParamsSelector,
) -> list[tuple[str, Callable[[str], object]]]:
    if callable(selector):
        return [("the predicate", selector)]
    patterns = (selector,) if isinstance(selector, str) else selector
    return [(repr(pattern), re.compile(pattern).search) for pattern in patterns]
