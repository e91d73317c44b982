"""Pieces cover an array once, hold whole chunks, and say where their bytes go."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jzero.checkpoint.slabs import Slab, plan_slabs, runs


@st.composite
def chunked(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    shape = tuple(draw(st.lists(st.integers(1, 9), max_size=4)))
    chunk = tuple(draw(st.integers(1, size)) for size in shape)
    return shape, chunk, draw(st.integers(1, 300))


@given(chunked())
def test_each_element_is_in_one_piece_and_lands_in_its_place(
    case: tuple[tuple[int, ...], tuple[int, ...], int],
) -> None:
    shape, chunk, max_elems = case
    array = np.arange(prod(shape)).reshape(shape)
    written = np.full(array.size, -1)
    for slab in plan_slabs(shape, chunk, max_elems=max_elems):
        assert slab.size_elems <= max(max_elems, prod(chunk))
        # Chunks are whole: pieces begin at their edges, and end there or at the end.
        for dim, (first, extent) in enumerate(zip(slab.start, slab.shape, strict=True)):
            assert first % chunk[dim] == 0
            end = first + extent
            assert end % chunk[dim] == 0 or end == shape[dim]
        run_elems, firsts = runs(slab, shape)
        flat = array[slab.index].reshape(-1)
        assert run_elems * len(firsts) == flat.size
        for number, first in enumerate(firsts):
            assert (written[first : first + run_elems] == -1).all()
            run = flat[number * run_elems : (number + 1) * run_elems]
            written[first : first + run_elems] = run
    np.testing.assert_array_equal(written, array.reshape(-1))


def test_pieces_grow_over_the_last_dims_first() -> None:
    slabs = list(plan_slabs((64, 32), (8, 4), max_elems=512))
    assert [slab.shape for slab in slabs] == [(16, 32)] * 4
    assert all(len(runs(slab, (64, 32))[1]) == 1 for slab in slabs)


def test_an_array_without_elements_has_no_pieces() -> None:
    assert not list(plan_slabs((0, 3), (1, 3), max_elems=8))


def test_a_scalar_is_one_run() -> None:
    (slab,) = plan_slabs((), (), max_elems=1)
    assert slab == Slab(start=(), shape=())
    assert runs(slab, ()) == (1, [0])
