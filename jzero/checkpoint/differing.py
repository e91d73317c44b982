"""What two saved steps do not have in common, leaf by leaf.

Lives here: `diff`, which streams both and holds a few pieces of them. May import:
`leaves.py`, `source.py`, `store.py`. Read next: `listing.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import jax.numpy as jnp
import numpy as np

from jzero.checkpoint.leaves import Leaf, StoredLeaves, open_leaves
from jzero.checkpoint.source import find_source
from jzero.checkpoint.store import pieces_of, read_ahead

__all__ = ["Diff", "LeafDiff", "diff"]

_PIECE_BYTES = 4_000_000
_AHEAD_BYTES = 16_000_000

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafDiff:
    """How one leaf differs.

    Attributes:
        path: The leaf.
        kind: What differs: one step lacks the leaf, or its shape, its dtype, or only
            numbers are others.
        first: What the first step has, e.g. "float32[4, 2]"; "" if it lacks the leaf.
        second: What the second one has.
        num_elems: How many elements differ in any bit; None if shapes differ.
        max_abs: The largest absolute difference; None for leaves that are no numbers,
            and inf where only one of two numbers is finite.
    """

    path: str
    kind: Literal["missing", "shape", "dtype", "values"]
    first: str
    second: str
    num_elems: int | None = None
    max_abs: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """How two steps differ.

    Attributes:
        names: What the two are called.
        num_leaves: How many leaves the two have together.
        leaves: Those that differ, by path.
    """

    names: tuple[str, str]
    num_leaves: int
    leaves: tuple[LeafDiff, ...]

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        return not self.leaves


def diff(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    atol: float = 0.0,
    progress: Progress | None = None,
) -> Diff:
    """Compares two saved steps leaf by leaf.

    Args:
        first: `runs/a@100`, or whatever else `consolidate` takes as a source.
        second: Another one.
        atol: Leaves of numbers that differ by no more count as equal; at 0, every
            bit counts, that of a negative zero included.
        progress: Called with the bytes done, the bytes in all, and the leaf.

    Returns:
        What differs.

    Raises:
        CheckpointError: One of them is not there, or cannot be read.
    """
    stored = tuple(open_leaves(find_source(each)) for each in (first, second))
    paths = list(dict.fromkeys((*_paths(stored[0]), *_paths(stored[1]))))
    pairs = {path: (_leaf(stored[0], path), _leaf(stored[1], path)) for path in paths}
    sizes = {
        path: sum(leaf.size_bytes for leaf in pair if leaf is not None)
        for path, pair in pairs.items()
    }
    total_bytes, done_bytes = sum(sizes.values()), 0
    found: list[LeafDiff] = []
    for path, pair in pairs.items():
        differs = _compare(path, *pair, atol=atol)
        if differs is not None:
            found.append(differs)
        done_bytes += sizes[path]
        if progress is not None:
            progress(done_bytes, total_bytes, path)
    return Diff(
        names=(stored[0].source.name, stored[1].source.name),
        num_leaves=len(paths),
        leaves=tuple(found),
    )


def _paths(stored: StoredLeaves) -> list[str]:
    manifest = stored.source.manifest
    if manifest is None:
        return list(stored.leaves)
    return [leaf.path for leaf in manifest.leaves]


def _leaf(stored: StoredLeaves, path: str) -> Leaf | None:
    return stored.leaves.get(stored.aliases.get(path, path))


def _describe(leaf: Leaf | None) -> str:
    return "" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"


def _compare(
    path: str, first: Leaf | None, second: Leaf | None, *, atol: float
) -> LeafDiff | None:
    bare = LeafDiff(
        path=path, kind="missing", first=_describe(first), second=_describe(second)
    )
    if first is None or second is None:
        return bare
    if first.shape != second.shape:
        return replace(bare, kind="shape")
    num_elems, max_abs = 0, None
    are_numbers = first.key_impl is None and second.key_impl is None
    arrays = [leaf.array for leaf in (first, second) if leaf.array is not None]
    # Keys of two implementations may have bits of different lengths.
    if len(arrays) == 2 and arrays[0].shape == arrays[1].shape:
        max_abs = 0.0 if are_numbers else None
        pieces = pieces_of(arrays, max_bytes=_PIECE_BYTES)
        for _, (a, b) in read_ahead(pieces, max_bytes=_AHEAD_BYTES):
            num_piece, max_piece = _compare_values(a, b)
            num_elems += num_piece
            if max_abs is not None:
                max_abs = max(max_abs, max_piece)
    if first.dtype != second.dtype:
        kind = "dtype"
    elif num_elems and not (atol > 0 and max_abs is not None and max_abs <= atol):
        kind = "values"
    else:
        return None
    return replace(bare, kind=kind, num_elems=num_elems, max_abs=max_abs)


def _compare_values(a: np.ndarray, b: np.ndarray) -> tuple[int, float]:
    """Counts the elements that differ, and returns the largest absolute difference."""
    a, b = a.reshape(-1), b.reshape(-1)
    if a.dtype == b.dtype:
        differ = _differ(a, b)
        if not differ.any():
            return 0, 0.0
        a, b = a[differ], b[differ]
        num_differ = a.size
    else:
        num_differ = None
    x, y = _wide(a), _wide(b)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(x - y)
    # Two that are not numbers, or the same infinity, are as far apart as equal ones.
    equal = (x == y) | (np.isnan(x) & np.isnan(y))
    distance = np.where(equal, 0.0, np.where(np.isnan(distance), np.inf, distance))
    if num_differ is None:
        num_differ = int(np.sum(~equal))
    return num_differ, float(distance.max(initial=0.0))


def _differ(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Says of each element whether any bit of it differs."""
    itemsize = a.dtype.itemsize
    word = f"u{min(itemsize, 8)}"
    differ = a.view(word) != b.view(word)
    # The widest complex numbers are two words.
    return differ if itemsize <= 8 else differ.reshape(a.size, -1).any(axis=1)


def _wide(values: np.ndarray) -> np.ndarray:
    """Converts numbers to the widest of their kind."""
    is_complex = jnp.issubdtype(values.dtype, np.complexfloating)
    return values.astype(np.complex128 if is_complex else np.float64)
