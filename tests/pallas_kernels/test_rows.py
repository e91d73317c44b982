"""Leaves as rows, and back."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import LeafFormat, LeafState, Scalars
from pallas_kernels.rounding import element_index, random_bits
from pallas_kernels.rows import Member, fits_rows, join, split
from pallas_kernels.shardwise import WHOLE, Dim, Place
from tests.pallas_kernels.leaves import RULE, SCALARS, random_leaf

ARRAYS = Scalars(*(jnp.float32(s) for s in SCALARS))


def member(form: LeafFormat, state: LeafState, place: Place = WHOLE) -> Member:
    dims = tuple(Dim(f"d{i}", n) for i, n in enumerate(state.param.shape))
    return Member(form=form, state=state, key=jnp.uint32(5), dims=dims, place=place)


@pytest.mark.parametrize(
    ("tile", "shape", "fits"),
    [
        (None, (3, 5), True),
        ((1, 256), (4, 512), True),
        ((1, 4, 64), (2, 8, 64), True),
        ((2, 128), (4, 256), False),
        ((8, 29), (64, 29), False),
    ],
)
def test_blocks_of_neighbours_fit(
    tile: tuple[int, ...] | None, shape: tuple[int, ...], fits: bool
) -> None:
    assert fits_rows(LeafFormat(tile=tile), shape) is fits


def test_there_and_back() -> None:
    shapes = [(3,), (17, 31), (), (256,)]
    members = [member(*random_leaf(i, s)) for i, s in enumerate(shapes)]
    rows = join(RULE, members, ARRAYS)
    assert rows.grad.shape == (8, 256), "whole chunks of four rows"
    for part, one in zip(split(rows.grad, shapes), members, strict=True):
        np.testing.assert_array_equal(part, one.state.grad)
    assert len(rows.kept) == 3


def test_scales_keep_the_rows_of_their_codes() -> None:
    shapes = [(2, 256), (1, 768)]
    members = [member(*random_leaf(i, s, is_coded=True)) for i, s in enumerate(shapes)]
    rows = join(RULE, members, ARRAYS)
    assert [a.shape for a in rows.kept[3:]] == [(8,), (8,)]
    parts = split(rows.kept[3], [(2, 1), (1, 3)])
    for part, one in zip(parts, members, strict=True):
        np.testing.assert_array_equal(part, one.state.scales[0])


@pytest.mark.parametrize(
    ("shape", "cuts", "is_counted"),
    [
        ((8, 256), {}, True),
        ((8, 256), {"d0": (4, 2)}, True),
        ((8, 256), {"d1": (4, 2)}, False),
        ((1, 1024), {"d1": (4, 2)}, True),
    ],
)
def test_bits_are_those_of_the_whole_array(
    shape: tuple[int, ...], cuts: dict[str, tuple[int, int]], is_counted: bool
) -> None:
    """By counting on in the kernel, where elements follow one by one; else as bits."""
    form, state = random_leaf(0, shape, dtype=jnp.bfloat16, is_stochastic=True)
    one = member(form, state, Place(cuts=dict(cuts)))
    rows = join(RULE, [one], ARRAYS)
    row, index = element_index(
        shape,
        global_shape=one.place.whole_shape(one.dims, shape),
        starts=one.place.starts(one.dims, shape),
    )
    want = random_bits(jnp.uint32(5), row, index).reshape(-1)
    assert (rows.bits is None) is is_counted
    if rows.bits is None:
        count = rows.words[1] + jnp.arange(want.size, dtype=jnp.uint32)
        got = random_bits(rows.words[0], jnp.uint32(0), count)
    else:
        got = rows.bits.reshape(-1)[: want.size]
    np.testing.assert_array_equal(got, want)
