"""Which boxes of a stored array the devices of this process want, and how to read them.

A device holds one box of an array, and a store hands out whole chunks. Where boxes are
made of whole chunks, each is read by itself; where a chunk lies in several boxes, it
is read once for all of them. Lives here: this choice, as plain values; nothing is
read. May import: `slabs.py`. Read next: `streaming.py`, which reads and places them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from jax.sharding import Sharding

from jzero.checkpoint.slabs import Slab, overlap, plan_slabs

__all__ = ["Part", "Read", "local_parts", "plan_reads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A box of an array, and the devices of this process that hold it.

    Attributes:
        slab: The box.
        devices: The devices, more than one where the array is replicated.
    """

    slab: Slab
    devices: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A box that is read at once.

    Attributes:
        slab: The box.
        parts: The numbers of the parts that it lies in, or that lie in it.
    """

    slab: Slab
    parts: tuple[int, ...]


def local_parts(shape: tuple[int, ...], sharding: Sharding) -> tuple[Part, ...]:
    """Lists the boxes that this process's devices hold, each once.

    Args:
        shape: The global shape.
        sharding: How the array lies.
    """
    devices: dict[Slab, list[Any]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        bounds = [s.indices(n) for s, n in zip(index or (), shape, strict=True)]
        slab = Slab(
            start=tuple(first for first, _, _ in bounds),
            shape=tuple(end - first for first, end, _ in bounds),
        )
        devices.setdefault(slab, []).append(device)
    return tuple(Part(slab=s, devices=tuple(held)) for s, held in devices.items())


def plan_reads(
    shape: tuple[int, ...],
    chunk: tuple[int, ...],
    parts: Sequence[Part],
    *,
    max_elems: int,
    small_elems: int,
    cut_chunks: bool = False,
) -> Iterator[Read]:
    """Says what to read of an array, in which order.

    Args:
        shape: The array's shape.
        chunk: The shape of the chunks that it lies in.
        parts: The boxes that are wanted.
        max_elems: The most elements to read at once, unless one chunk has more.
        small_elems: An array of so many elements is read whole, whoever wants what.
        cut_chunks: Whether a part of a chunk can be read as well.

    Yields:
        Boxes that cover all parts, each element once; of whole chunks, unless these
        can be cut.

    Example:
        >>> boxes = [Slab(start=(i,), shape=(4,)) for i in (0, 4)]
        >>> halves = [Part(slab=box, devices=()) for box in boxes]
        >>> most = {"max_elems": 8, "small_elems": 0}
        >>> [read.parts for read in plan_reads((8,), (4,), halves, **most)]
        [(0,), (1,)]
        >>> [read.parts for read in plan_reads((8,), (8,), halves, **most)]
        [(0, 1)]
    """
    if prod(shape) > small_elems and all(
        _is_whole_chunks(part.slab, shape, chunk) for part in parts
    ):
        for number, part in enumerate(parts):
            for inner in plan_slabs(
                part.slab.shape, chunk, max_elems=max_elems, cut_chunks=cut_chunks
            ):
                yield Read(slab=inner.moved(part.slab.start), parts=(number,))
        return
    for slab in plan_slabs(
        shape, chunk, max_elems=max(max_elems, small_elems), cut_chunks=cut_chunks
    ):
        touched = (n for n, p in enumerate(parts) if overlap(p.slab, slab) is not None)
        if found := tuple(touched):
            yield Read(slab=slab, parts=found)


def _is_whole_chunks(
    slab: Slab, shape: tuple[int, ...], chunk: tuple[int, ...]
) -> bool:
    """Says whether a box starts and ends where chunks do, or the array."""
    return all(
        first % step == 0 and ((first + extent) % step == 0 or first + extent == size)
        for first, extent, size, step in zip(
            slab.start, slab.shape, shape, chunk, strict=True
        )
    )
