"""Functions on shards: what runs where, and that nothing moves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from pallas_kernels.shardwise import Dim, Place, shardwise
from tests.end_to_end.oracle import mesh_of

ROWS, COLUMNS = Dim("rows", 16), Dim("columns", 2)
DIMS = (ROWS, COLUMNS)
MOVES = re.compile(r"all-gather|all-reduce|all-to-all|collective-permute")
P = PartitionSpec


def block_means(x: jax.Array, y: jax.Array) -> list[jax.Array]:
    """(16, 512), (16, 2) -> their product, block by block, and the means of blocks."""

    def local(place: Place, x: jax.Array, y: jax.Array) -> Sequence[jax.Array]:
        blocks = x.reshape(*y.shape, -1) * y[..., None]
        return [blocks.reshape(x.shape), blocks.mean(-1)]

    return shardwise(local, [x, y], operands=[DIMS] * 2, results=[DIMS] * 2)


@pytest.fixture
def arrays() -> tuple[jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(0))
    return jax.random.normal(keys[0], (16, 512)), jax.random.normal(keys[1], (16, 2))


@pytest.mark.parametrize(
    ("num_devices", "spec", "moves"),
    [
        (8, P("data"), False),
        (2, P(None, "data"), False),
        (8, P(), False),
        (8, P(None, "data"), True),  # would cut blocks: made whole
    ],
)
def test_shards_stay_where_they_are(
    arrays: tuple[jax.Array, jax.Array], num_devices: int, spec: Any, moves: bool
) -> None:
    mesh = mesh_of(num_devices)
    fits = spec != P(None, "data") or num_devices == 2
    placed = [
        jax.device_put(arrays[0], NamedSharding(mesh, spec)),
        jax.device_put(arrays[1], NamedSharding(mesh, spec if fits else P())),
    ]
    compiled = jax.jit(block_means).lower(*placed).compile()
    assert bool(MOVES.search(compiled.as_text() or "")) is moves
    got = compiled(*placed)
    for one, other in zip(got, block_means(*arrays), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    if not moves:
        assert got[0].sharding.is_equivalent_to(placed[0].sharding, 2)


def test_a_shard_is_told_its_place() -> None:
    def local(place: Place, x: jax.Array) -> Sequence[jax.Array]:
        start = place.starts(DIMS, x.shape)[0]
        assert place.whole_shape(DIMS, x.shape) == (16, 512)
        return [x + start.astype(jnp.float32)]

    x = jnp.zeros((16, 512))
    placed = jax.device_put(x, NamedSharding(mesh_of(8), P("data")))
    run = jax.jit(lambda x: shardwise(local, [x], operands=[DIMS], results=[DIMS])[0])
    np.testing.assert_array_equal(run(placed)[:, 0], np.repeat(np.arange(8) * 2, 2))
    np.testing.assert_array_equal(run(x), x)
