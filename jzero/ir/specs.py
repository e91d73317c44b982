"""Partition specs as plain tuples with one entry per dim.

Lives here: the arithmetic that marks and demands need on specs. An entry is
None (the dim is whole), a mesh axis name, or a tuple of names. May import:
nothing. Read next: `marks.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.sharding import PartitionSpec

# The last is `PartitionSpec.UNCONSTRAINED`: left to the compiler.
Entry = None | str | tuple[str, ...] | Any
Dims = tuple[Entry, ...]


def to_dims(spec: PartitionSpec | Sequence[Entry], rank: int) -> Dims:
    """Pads a partition spec with None up to `rank` entries."""
    entries = tuple(tuple(e) if isinstance(e, list) else e for e in spec)
    return entries + (None,) * (rank - len(entries))


def to_spec(dims: Dims) -> PartitionSpec:
    """Returns the `PartitionSpec` of one entry per dim."""
    return PartitionSpec(*dims)


def stack(dims: Dims) -> Dims:
    """Adds the whole leading dim of a loop's stacked operand or result."""
    return (None, *dims)


def unstack(dims: Dims) -> Dims | None:
    """Drops the leading dim; None when that dim is itself sharded."""
    if not dims or dims[0] is not None:
        return None
    return dims[1:]


def permute(dims: Dims, permutation: Sequence[int]) -> Dims:
    """Reorders entries as `transpose` reorders dims."""
    return tuple(dims[i] for i in permutation)


def inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    """Returns the permutation that undoes `permutation`."""
    return tuple(sorted(range(len(permutation)), key=lambda i: permutation[i]))


def reshape_units(
    dims: Dims, old_shape: Sequence[int], new_shape: Sequence[int]
) -> Dims | None:
    """Follows a reshape that only adds or removes dims of size 1.

    Returns None for any other reshape, or when a dim of size 1 is sharded.
    """
    kept = [(n, d) for n, d in zip(old_shape, dims, strict=True) if n != 1]
    dropped = [d for n, d in zip(old_shape, dims, strict=True) if n == 1]
    if any(d is not None for d in dropped):
        return None
    if [n for n, _ in kept] != [n for n in new_shape if n != 1]:
        return None
    entries = iter(d for _, d in kept)
    return tuple(None if n == 1 else next(entries) for n in new_shape)


def is_sharded(dims: Dims) -> bool:
    """Says whether any dim is split."""
    return any(d is not None for d in dims)
