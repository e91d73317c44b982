"""Streaming arrays from the store to the devices, with a bound on what is in flight.

Beside the arrays that are done, memory holds what is being read (a quarter of the
largest leaf, within bounds), the parts that it goes into, and one of these twice while
it is copied to its devices. Parts that are larger than all that is being read grow
where they are to lie. (TensorStore reads in threads of its own; Orbax's bound
on bytes wakes every waiting read whenever one ends, which takes minutes with many
leaves.)
Lives here: the loop that reads ahead and places. May import: `parts.py`, `store.py`.
Read next: `reading.py`, which says what to read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import tensorstore as ts
from jax.sharding import NamedSharding, SingleDeviceSharding

from jzero.checkpoint.buffers import Buffers
from jzero.checkpoint.growing import Growing, can_grow
from jzero.checkpoint.parts import Read, local_parts, plan_reads
from jzero.checkpoint.slabs import Slab, overlap
from jzero.checkpoint.store import StoredArray, why
from jzero.errors import CheckpointError

__all__ = ["Wanted", "read_arrays"]

# Bounds on what is in flight, however large or small the leaves are.
_LEAST_BYTES = 16 * 2**20
_MOST_BYTES = 128 * 2**20
# What is read at once, and what is read whole without a look at who wants what.
_PIECE_BYTES = 4 * 2**20
_SMALL_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An array to read.

    Attributes:
        array: The array in the store.
        dtype: The dtype that it is to have.
        sharding: Where it is to lie.
    """

    array: StoredArray
    dtype: np.dtype[Any]
    sharding: NamedSharding


def read_arrays(wanted: Sequence[Wanted]) -> list[jax.Array]:
    """Reads arrays, every device its own part.

    Args:
        wanted: What to read, and where to.

    Returns:
        One array each, in order.

    Raises:
        CheckpointError: An array cannot be read.
    """
    buffers = Buffers(_LEAST_BYTES)
    arriving = [_Arriving(each, buffers) for each in wanted]
    largest_bytes = max((each.local_bytes for each in arriving), default=0)
    # A quarter of a leaf, since the allocator keeps memory that is free.
    limit_bytes = min(max(largest_bytes // 4, _LEAST_BYTES), _MOST_BYTES)
    for each in arriving:
        each.grow_above(limit_bytes)
    _Stream(limit_bytes).run(arriving)
    return [each.array() for each in arriving]


class _Arriving:
    """An array of which parts are read, or there already."""

    def __init__(self, wanted: Wanted, buffers: Buffers) -> None:
        self.wanted = wanted
        self.parts = local_parts(wanted.array.shape, wanted.sharding)
        stored = wanted.array
        self._is_cast = stored.dtype != wanted.dtype
        self._is_compressed = stored.is_compressed
        self._source = stored.array
        if self._is_cast:
            self._source = ts.cast(stored.array, ts.dtype(wanted.dtype))
        self._buffers = buffers
        self._open: dict[int, np.ndarray] = {}
        self._growing: set[int] = set()
        self._grown: dict[int, Growing] = {}
        self._missing = [0] * len(self.parts)
        self._shards: list[jax.Array] = []

    @property
    def local_bytes(self) -> int:
        """The bytes that this process wants, copies on several devices left out."""
        return sum(map(self.part_bytes, range(len(self.parts))))

    def part_bytes(self, number: int) -> int:
        """The bytes of a part."""
        return self.parts[number].slab.size_elems * self.wanted.dtype.itemsize

    def grow_above(self, limit_bytes: int) -> None:
        """Has parts of more bytes put together where they are to lie."""
        kind = self.wanted.sharding.memory_kind
        self._growing = {
            number
            for number, part in enumerate(self.parts)
            if self.part_bytes(number) > limit_bytes and can_grow(part.devices, kind)
        }

    def place_bytes(self, number: int) -> int:
        """The bytes that placing a whole part takes."""
        return 0 if number in self._growing else self.part_bytes(number)

    def plan(self) -> list[Read]:
        """Returns what to read."""
        stored = self.wanted.array
        reads = list(
            plan_reads(
                stored.shape,
                stored.chunk,
                self.parts,
                max_elems=_PIECE_BYTES // stored.dtype.itemsize,
                small_elems=_SMALL_BYTES // stored.dtype.itemsize,
                cut_chunks=stored.raw is not None and not self._is_cast,
            )
        )
        for read in reads:
            for number in read.parts:
                self._missing[number] += 1
        return reads

    def read_bytes(self, read: Read) -> int:
        """The bytes that a read takes beside the parts themselves."""
        stored = self.wanted.array
        # What comes from the store, what is made of it (numbers of compressed chunks,
        # texts of runs), and what lies beside the parts before it is cut up.
        is_made = self._is_compressed or stored.raw is not None
        copies = 1 + is_made + self._is_beside(read)
        return copies * read.slab.size_elems * stored.dtype.itemsize

    def start(self, read: Read) -> _Running:
        """Starts to read: into its place, or beside it if it has several places."""
        box = self._box(read)
        if self._is_beside(read):
            # What is read is copied from there, to parts or to devices.
            into = self._buffers.take(box.shape, self.wanted.dtype, is_copied=False)
        else:
            part = self.parts[read.parts[0]].slab
            into = self._buffer(read.parts[0])[box.within(part)]
        raw = None if self._is_cast else self.wanted.array.raw
        run = None if raw is None else raw.read(box)
        if run is None:
            moved = ts.array(into)[ts.d[:].translate_to[box.start]]
            future = moved.write(self._source[box.index])
            return _Running(arriving=self, read=read, into=into, future=future)
        return _Running(arriving=self, read=read, into=into, future=run)

    def finish(self, running: _Running) -> list[int]:
        """Waits for what is read; returns the parts that are now whole."""
        read, into = running.read, running.into
        try:
            values = running.future.result()
        except ValueError as error:
            raise CheckpointError(
                f"{self.wanted.array.path} cannot be read: {why(error)}"
            ) from error
        if values is not None:
            into[...] = values
        if self._is_beside(read):
            for number in read.parts:
                self._put(number, self._box(read), into)
            self._buffers.give_back(into)
        for number in read.parts:
            self._missing[number] -= 1
        return [number for number in read.parts if not self._missing[number]]

    def place(self, number: int) -> None:
        """Copies a part to its devices, if it is not there, and lets go of it."""
        if number in self._growing:
            self._shards += self._grown.pop(number).arrays()
            return
        buffer = self._open.pop(number)
        kind = self.wanted.sharding.memory_kind
        placed = [
            jax.device_put(buffer, SingleDeviceSharding(device, memory_kind=kind))
            for device in self.parts[number].devices
        ]
        # Until then the buffer is in use.
        self._shards += jax.block_until_ready(placed)
        self._buffers.give_back(buffer)

    def array(self) -> jax.Array:
        """Returns the array."""
        return jax.make_array_from_single_device_arrays(
            self.wanted.array.shape, self.wanted.sharding, self._shards
        )

    def _is_beside(self, read: Read) -> bool:
        """Says whether what is read waits beside the parts that it is for."""
        number, *others = read.parts
        return bool(others) or number in self._growing

    def _box(self, read: Read) -> Slab:
        """Returns what is wanted of a read."""
        number, *others = read.parts
        if others:
            return read.slab
        return overlap(self.parts[number].slab, read.slab) or read.slab

    def _put(self, number: int, box: Slab, values: np.ndarray) -> None:
        """Puts into a part what a box has of it."""
        part = self.parts[number]
        common = overlap(part.slab, box)
        assert common is not None
        piece = values[common.within(box)]
        if number not in self._growing:
            self._buffer(number)[common.within(part.slab)] = piece
            return
        if number not in self._grown:
            shape = part.slab.shape
            self._grown[number] = Growing(shape, self.wanted.dtype, part.devices)
        firsts = zip(common.start, part.slab.start, strict=True)
        self._grown[number].write(piece, tuple(a - b for a, b in firsts))

    def _buffer(self, number: int) -> np.ndarray:
        """Returns the memory that a part is put together in."""
        if number not in self._open:
            shape = self.parts[number].slab.shape
            self._open[number] = self._buffers.take(shape, self.wanted.dtype)
        return self._open[number]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """A read that is under way.

    Attributes:
        arriving: The array.
        read: What is read of it.
        into: The memory that it goes into.
        future: TensorStore's; its result is what was read, or None if that is there.
    """

    arriving: _Arriving
    read: Read
    into: np.ndarray
    future: Any

    @property
    def size_bytes(self) -> int:
        """What it takes beside the state."""
        return self.arriving.read_bytes(self.read)


class _Stream:
    """Reads that are under way, and their bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._waiting: deque[_Running] = deque()
        self._whole: deque[tuple[_Arriving, int]] = deque()

    def run(self, arriving: Iterable[_Arriving]) -> None:
        """Reads and places everything."""
        for each in arriving:
            for read in each.plan():
                self._make_room(each.read_bytes(read))
                self._held_bytes += each.read_bytes(read)
                self._waiting.append(each.start(read))
        while self._waiting:
            self._settle()
            self._place()

    def _make_room(self, num_bytes: int) -> None:
        while self._waiting and self._held_bytes + num_bytes > self._limit_bytes:
            self._settle()
            self._place()

    def _settle(self) -> None:
        """Waits for the oldest read."""
        running = self._waiting.popleft()
        whole = running.arriving.finish(running)
        self._whole += ((running.arriving, number) for number in whole)
        self._held_bytes -= running.size_bytes

    def _place(self) -> None:
        """Places parts that are whole; each is there twice while it is copied."""
        while self._whole:
            each, number = self._whole.popleft()
            num_bytes = each.place_bytes(number)
            while self._waiting and self._held_bytes + num_bytes > self._limit_bytes:
                self._settle()
            each.place(number)
