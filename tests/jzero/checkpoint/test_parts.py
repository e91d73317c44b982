"""Every box that a device wants is read, and no chunk of the store twice."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jzero.checkpoint.parts import Part, Read, local_parts, plan_reads
from jzero.checkpoint.slabs import Slab, overlap


def sharding(*spec: Any, num_devices: int = 8) -> NamedSharding:
    devices = np.array(jax.devices()[:num_devices]).reshape(-1, 2)
    return NamedSharding(Mesh(devices, ("data", "model")), PartitionSpec(*spec))


def grid(shape: tuple[int, ...], step: tuple[int, ...]) -> list[Part]:
    """Cuts an array into boxes of one shape, those at the ends smaller."""
    starts = product(*(range(0, n, s) for n, s in zip(shape, step, strict=True)))
    boxes = []
    for start in starts:
        ends = [min(f + s, n) for f, s, n in zip(start, step, shape, strict=True)]
        extent = tuple(end - f for end, f in zip(ends, start, strict=True))
        boxes.append(Part(slab=Slab(start=start, shape=extent), devices=()))
    return boxes


def plan(shape: Any, chunk: Any, parts: Any, most: int, small: int = 0) -> list[Read]:
    reads = plan_reads(shape, chunk, parts, max_elems=most, small_elems=small)
    return list(reads)


def test_devices_that_hold_the_same_box_share_it() -> None:
    parts = local_parts((8, 6), sharding("data"))
    assert [part.slab.start for part in parts] == [(0, 0), (2, 0), (4, 0), (6, 0)]
    assert all(part.slab.shape == (2, 6) for part in parts)
    assert all(len(part.devices) == 2 for part in parts)
    (whole,) = local_parts((3,), sharding())
    assert whole.slab.shape == (3,) and len(whole.devices) == 8
    (scalar,) = local_parts((), sharding())
    assert scalar.slab == Slab(start=(), shape=())


def test_boxes_of_whole_chunks_are_read_by_themselves() -> None:
    parts = grid((16, 4), (4, 4))
    reads = plan((16, 4), (2, 4), parts, most=8)
    assert [read.parts for read in reads] == [
        (0,),
        (0,),
        (1,),
        (1,),
        (2,),
        (2,),
        (3,),
        (3,),
    ]


def test_a_chunk_in_several_boxes_is_read_once() -> None:
    reads = plan((16, 4), (16, 4), grid((16, 4), (2, 4)), most=8)
    assert [read.parts for read in reads] == [tuple(range(8))]
    # Written along one dim, wanted along the other.
    reads = plan((8, 8), (1, 8), grid((8, 8), (8, 1)), most=16)
    assert [read.slab.shape for read in reads] == [(2, 8)] * 4


def test_small_arrays_are_read_at_once() -> None:
    (read,) = plan((16, 4), (2, 4), grid((16, 4), (2, 4)), most=8, small=64)
    assert read.parts == tuple(range(8))


def test_chunks_that_nobody_here_wants_are_left_out() -> None:
    """As where other processes hold the other boxes."""
    mine = grid((16, 4), (4, 4))[1:2]
    reads = plan((16, 4), (3, 4), mine, most=12)
    assert [read.slab.start for read in reads] == [(3, 0), (6, 0)]


def test_boxes_apart_share_nothing() -> None:
    assert overlap(Slab(start=(0,), shape=(2,)), Slab(start=(2,), shape=(2,))) is None
    assert overlap(Slab(start=(), shape=()), Slab(start=(), shape=())) is not None


SIZES = st.integers(1, 7)


@settings(max_examples=150, deadline=None)
@given(
    dims=st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=0, max_size=3),
    most=st.integers(1, 60),
    small=st.sampled_from((0, 20)),
)
def test_each_box_is_covered_and_each_chunk_read_once(
    dims: list[tuple[int, int, int]], most: int, small: int
) -> None:
    shape, chunk, box = ((), (), ()) if not dims else zip(*dims, strict=True)
    parts = grid(shape, box)
    covered: Counter[tuple[int, tuple[int, ...]]] = Counter()
    chunks: Counter[tuple[int, ...]] = Counter()
    for read in plan(shape, chunk, parts, most, small):
        for start in product(
            *(
                range(s.start, s.stop, c)
                for s, c in zip(read.slab.index, chunk, strict=True)
            )
        ):
            chunks[start] += 1
        for number in read.parts:
            found = overlap(parts[number].slab, read.slab)
            assert found is not None
            for place in product(*(range(s.start, s.stop) for s in found.index)):
                covered[number, place] += 1
    assert set(chunks.values()) == {1}
    assert set(covered.values()) == {1}
    assert len(covered) == int(np.prod(shape))
