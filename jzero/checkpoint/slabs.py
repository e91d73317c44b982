"""How an array that lies in chunks is read piece by piece.

Lives here: pure arithmetic. A store hands out whole chunks, so a piece is a box of
whole chunks, and a file wants runs of bytes, so a piece says where its runs go. May
import: nothing. Read next: `store.py`, which reads the pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

__all__ = ["Slab", "overlap", "plan_slabs", "runs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slab:
    """A box within an array.

    Attributes:
        start: The first index, per dim.
        shape: The extent, per dim.
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size_elems(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def index(self) -> tuple[slice, ...]:
        """The box as an index of the array."""
        return tuple(
            slice(first, first + extent)
            for first, extent in zip(self.start, self.shape, strict=True)
        )

    def moved(self, by: Sequence[int]) -> Slab:
        """Returns the box with its start moved."""
        start = tuple(first + step for first, step in zip(self.start, by, strict=True))
        return Slab(start=start, shape=self.shape)

    def within(self, outer: Slab) -> tuple[Any, ...]:
        """Returns the box as an index of a box around it, which gives a view."""
        inner = self.moved([-first for first in outer.start])
        # Without "..." a scalar would be copied.
        return (..., *inner.index)


def plan_slabs(
    shape: Sequence[int],
    chunk: Sequence[int],
    *,
    max_elems: int,
    cut_chunks: bool = False,
) -> Iterator[Slab]:
    """Cuts an array into boxes of whole chunks, in the order of its bytes.

    A box grows over the last dims first, so that it is one run of bytes wherever the
    limit allows. No chunk is in two boxes, for it would be decoded twice.

    Args:
        shape: The array's shape. A dim of 0 has no boxes.
        chunk: The shape of the chunks that it lies in.
        max_elems: The most elements of a box; a larger chunk is a box by itself.
        cut_chunks: Cut larger chunks as well, into runs of their bytes.

    Yields:
        The boxes. Together they cover the array once.

    Example:
        >>> [slab.shape for slab in plan_slabs((6, 4), (2, 2), max_elems=16)]
        [(4, 4), (2, 4)]
        >>> [slab.shape for slab in plan_slabs((6, 4), (6, 2), max_elems=16)]
        [(6, 2), (6, 2)]
        >>> cut = plan_slabs((6, 4), (6, 2), max_elems=6, cut_chunks=True)
        >>> [(slab.start, slab.shape) for slab in cut]
        [((0, 0), (3, 2)), ((3, 0), (3, 2)), ((0, 2), (3, 2)), ((3, 2), (3, 2))]
    """
    box = [min(c, s) for c, s in zip(chunk, shape, strict=True)]
    if 0 in box:
        return
    for dim in reversed(range(len(box))):
        room = max_elems // prod(box)
        wanted = -(-shape[dim] // chunk[dim])
        box[dim] = min(chunk[dim] * max(1, min(room, wanted)), shape[dim])
        if box[dim] < shape[dim]:
            break
    starts = (range(0, size, step) for size, step in zip(shape, box, strict=True))
    for start in product(*starts):
        extents = (
            min(step, size - first)
            for first, step, size in zip(start, box, shape, strict=True)
        )
        slab = Slab(start=start, shape=tuple(extents))
        if cut_chunks and slab.size_elems > max_elems:
            single = (1,) * len(box)
            for inner in plan_slabs(slab.shape, single, max_elems=max_elems):
                yield inner.moved(start)
        else:
            yield slab


def overlap(one: Slab, other: Slab) -> Slab | None:
    """Returns the box that two boxes share, or None.

    Example:
        >>> overlap(Slab(start=(0, 2), shape=(4, 4)), Slab(start=(2, 0), shape=(4, 4)))
        Slab(start=(2, 2), shape=(2, 2))
    """
    start = tuple(map(max, one.start, other.start))
    shape = tuple(
        min(a + m, b + n) - first
        for a, m, b, n, first in zip(
            one.start, one.shape, other.start, other.shape, start, strict=True
        )
    )
    if any(extent <= 0 for extent in shape):
        return None
    return Slab(start=start, shape=shape)


def runs(slab: Slab, shape: Sequence[int]) -> tuple[int, list[int]]:
    """Says where the elements of a box lie in an array that is stored row by row.

    Args:
        slab: The box.
        shape: The array's shape.

    Returns:
        The elements of one run, and the first element of each run. Read row by row,
        the box is these runs one behind the other.

    Example:
        >>> runs(Slab(start=(2, 0), shape=(2, 4)), (6, 4))
        (8, [8])
        >>> runs(Slab(start=(0, 2), shape=(3, 2)), (6, 4))
        (2, [2, 6, 10])
    """
    strides = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
    inner = len(shape)
    while inner > 0 and slab.shape[inner - 1] == shape[inner - 1]:
        inner -= 1
    # The dim before those that are covered whole is still one run per outer index.
    outer = max(inner - 1, 0)
    base = sum(f * s for f, s in zip(slab.start, strides, strict=True))
    steps = (
        range(0, slab.shape[dim] * strides[dim], strides[dim]) for dim in range(outer)
    )
    firsts = [base + sum(offsets) for offsets in product(*steps)]
    return prod(slab.shape[outer:]), firsts
