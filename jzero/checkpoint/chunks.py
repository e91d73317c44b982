"""How large the chunks are in which arrays are stored.

A compressed chunk is read whole, so its size bounds what reading takes beside the
array: without a bound, an array that one device saves is one chunk. Orbax cuts to a
number of bytes by going to the next smaller divisor of the largest dim, again and
again, which makes slivers of dims that are prime; such arrays are better left as they
are. Lives here: whether Orbax is asked to cut. May import: nothing. Read next:
`saving.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt, prod

__all__ = ["CHUNK_BYTES", "LEAST_BYTES", "cut_shape", "is_worth_cutting"]

CHUNK_BYTES = 8 * 2**20
# Chunks that are smaller cost more to write and to find than they save.
LEAST_BYTES = 2**20


def is_worth_cutting(
    shape: Sequence[int], local_shape: Sequence[int], itemsize: int
) -> bool:
    """Says whether Orbax should cut an array into chunks of `CHUNK_BYTES`.

    Args:
        shape: The global shape.
        local_shape: The shape of what one device writes.
        itemsize: Bytes of an element.

    Example:
        >>> is_worth_cutting((65536, 1024), (65536, 1024), 4)  # 256 MiB in one chunk
        True
        >>> is_worth_cutting((65537, 1024), (65537, 1024), 4)  # prime: rows of 4 KiB
        False
        >>> is_worth_cutting((65536, 1024), (1024, 1024), 4)  # 4 MiB are few
        False
    """
    if prod(local_shape) * itemsize <= CHUNK_BYTES:
        return False
    cut = cut_shape(shape, local_shape, max_elems=CHUNK_BYTES // itemsize)
    return prod(cut) * itemsize >= LEAST_BYTES


def cut_shape(
    shape: Sequence[int], local_shape: Sequence[int], *, max_elems: int
) -> tuple[int, ...]:
    """Foretells the chunks that Orbax makes of an array.

    It cuts the largest dim first, and dims that are sharded before any other.

    Args:
        shape: The global shape.
        local_shape: The shape of what one device writes.
        max_elems: The most elements of a chunk.

    Example:
        >>> cut_shape((12, 8), (12, 8), max_elems=24)
        (6, 4)
        >>> cut_shape((12, 8), (12, 2), max_elems=12)
        (12, 1)
    """
    cut = list(local_shape)
    may_cut = [c != s for c, s in zip(cut, shape, strict=True)]
    while prod(cut) > max_elems:
        dims = [dim for dim, size in enumerate(cut) if may_cut[dim] and size > 1]
        if not dims:
            may_cut = [True] * len(cut)
            continue
        dim = max(dims, key=lambda dim: cut[dim])
        cut[dim] = max(d for d in _divisors(local_shape[dim]) if d < cut[dim])
    return tuple(cut)


def _divisors(number: int) -> set[int]:
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return {*small, *(number // d for d in small)}
