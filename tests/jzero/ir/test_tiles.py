"""Tiles cover an array once, and lie in one piece on every device."""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jzero.ir.tiles import plan_tiles

SIZES = {"data": 4, "model": 2}


@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    spread=st.sampled_from([None, "data", "model", ("data", "model")]),
    where=st.integers(0, 2),
    bound=st.integers(1, 200),
)
@settings(max_examples=60, deadline=None)
def test_every_element_is_in_one_tile(counts, spread, where, bound) -> None:
    where %= len(counts)
    names = spread if isinstance(spread, tuple) else (spread,)
    shards = prod(SIZES[n] for n in names if n)
    shape = tuple(n * shards if i == where else n for i, n in enumerate(counts))
    dims = tuple(spread if i == where else None for i in range(len(shape)))
    tiling = plan_tiles(shape, dims, SIZES, max_local_elems=bound)
    assert tiling.local_elems <= bound
    assert tiling.local_elems * shards * tiling.num_tiles == prod(shape)
    viewed = jnp.arange(prod(shape)).reshape(tiling.view)
    tiles = [
        np.asarray(tiling.cut(viewed, jnp.int32(t))).ravel()
        for t in range(min(tiling.num_tiles, 12))
    ]
    seen = np.concatenate(tiles)
    assert len(np.unique(seen)) == len(seen)
    if tiling.num_tiles <= 12:
        assert len(seen) == prod(shape)


@pytest.mark.parametrize(
    ("shape", "dims", "bound", "tile"),
    [
        ((16, 4), (None, None), 64, (16, 4)),
        ((16, 4), (None, None), 16, (4, 4)),
        ((3, 16, 4), (None, None, None), 16, (1, 4, 4)),
        ((16, 4), ("data", None), 8, (4, 2, 4)),
        ((6, 8), (None, "data"), 4, (2, 4, 2)),
        ((7, 4), (None, None), 8, (1, 4)),
    ],
)
def test_trailing_dims_stay_whole(shape, dims, bound, tile) -> None:
    assert plan_tiles(shape, dims, SIZES, max_local_elems=bound).tile == tile


def test_filling_puts_a_tile_back_where_it_was_cut() -> None:
    tiling = plan_tiles((6, 8, 2), (None, "data", None), SIZES, max_local_elems=2)
    viewed = jnp.arange(96.0).reshape(tiling.view)

    def turn(t: jax.Array, new: jax.Array) -> jax.Array:
        return tiling.fill(new, tiling.cut(viewed, t) + 1, t)

    new = jax.lax.fori_loop(0, tiling.num_tiles, turn, jnp.zeros_like(viewed))
    np.testing.assert_array_equal(new, viewed + 1)
