"""A stream gives the same whole, tile by tile, and on the host."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jzero.compat.jaxpr import inner
from jzero.compat.memory import to_host
from jzero.ir.inline import inline_calls
from jzero.ir.stream_loop import StreamRun
from jzero.ir.streams import find_streams
from tests.end_to_end.oracle import mesh_of

SHAPE = (16, 8)


def update(m: Any, p: Any, g: Any, rate: Any) -> Any:
    full = jnp.broadcast_to(rate, SHAPE)
    m = m * 0.5 + g
    return m, p - full * m


def run_of_update() -> StreamRun:
    array, scalar = jnp.ones(SHAPE), jnp.float32(0.5)
    jaxpr = jax.make_jaxpr(update)(array, array, array, scalar)
    body = inner(jaxpr)
    found = find_streams(jaxpr, [body.invars[0]])
    (stream,) = found.all
    return StreamRun.of(
        stream,
        jaxpr,
        found.made_at,
        host_outs=frozenset(body.outvars[:1]),
        replaces=dict(zip(body.outvars, body.invars[:2], strict=True)),
    )


def inputs(run: StreamRun) -> list[Any]:
    """Arrays for what the stream reads, by shape and name."""
    rng = np.random.default_rng(0)
    # Quarters, whose sums and products are exact: no order of rounding shows.
    return [
        jnp.asarray(rng.integers(-8, 8, size=v.aval.shape) / 4, jnp.float32)
        for v in run.inputs
    ]


def wanted(run: StreamRun, arrays: list[Any]) -> list[Any]:
    values = dict(zip(run.inputs, arrays, strict=True))
    run._compute(values, SHAPE, run.eqns)
    return [values[v] for v in run.stream.outs]


def test_a_repeated_scalar_is_read_as_the_scalar() -> None:
    run = run_of_update()
    assert sorted(len(v.aval.shape) for v in run.inputs) == [0, 2, 2, 2]
    assert len(run.reuses) == 2


@pytest.mark.parametrize("window_bytes", [1, 256, 1024])
def test_tile_by_tile(window_bytes: int) -> None:
    run = run_of_update()
    arrays = inputs(run)
    dims = {run.stream.leaves[0]: ("data", None)}
    tiling = run.tiling(dims, {"data": 8}, window_bytes)
    assert tiling is not None
    assert run.device_bytes(tiling) <= max(window_bytes, 8)
    sharding = NamedSharding(mesh_of(8), PartitionSpec("data"))
    placed = [jax.device_put(x, sharding) if x.ndim else x for x in arrays]

    def loop(*xs: Any) -> list[Any]:
        return run.tiled(tiling)(to_host(xs[0]), *xs[1:])

    got = jax.jit(loop)(*placed)
    assert got[0].sharding.memory_kind == "pinned_host"
    for one, other in zip(got, wanted(run, arrays), strict=True):
        np.testing.assert_array_equal(one, other)


def test_leaves_that_lie_in_different_ways_are_not_cut() -> None:
    run = run_of_update()
    assert run.tiling({}, {"data": 8}, 64) is None
    assert run.device_bytes(None) == 0


def test_a_leaf_that_divides_too_finely_stays_whole() -> None:
    array = jnp.ones((10_007, 2))  # a prime number of rows
    jaxpr = jax.make_jaxpr(lambda m, g: m * 0.5 + g)(array, array)
    body = inner(jaxpr)
    found = find_streams(jaxpr, body.invars[:1])
    run = StreamRun.of(
        found.all[0],
        jaxpr,
        found.made_at,
        host_outs=frozenset(body.outvars),
        replaces={body.outvars[0]: body.invars[0]},
    )
    dims = {body.invars[0]: (None, None)}
    for window_bytes, num_tiles in ((2**14, 1), (2**8, 10_007)):
        tiling = run.tiling(dims, {}, window_bytes)
        assert tiling is not None
        assert tiling.num_tiles == num_tiles


def test_on_the_host() -> None:
    run = run_of_update()
    arrays = inputs(run)
    got = jax.jit(lambda x, *xs: run.on_host(to_host(x), *xs))(*arrays)
    assert [x.sharding.memory_kind for x in got] == ["pinned_host", "device"]
    for one, other in zip(got, wanted(run, arrays), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_repeated_number_on_the_host() -> None:
    array = jnp.arange(-4.0, 4.0)
    jaxpr = jax.make_jaxpr(lambda m: jnp.where(m > 0, m, jnp.ones(8)))(array)
    body = inner(inline_calls(jaxpr, [True]))
    found = find_streams(body, body.invars)
    run = StreamRun.of(
        found.all[0], body, found.made_at, host_outs=frozenset(), replaces={}
    )
    assert len(run.spread) == 1
    (got,) = jax.jit(lambda x: run.on_host(to_host(x)))(array)
    np.testing.assert_array_equal(got, jnp.maximum(array, jnp.where(array > 0, 0, 1)))


def test_a_parameter_on_the_device_stays_there() -> None:
    run = run_of_update()
    below, above = run._split()
    assert below[1].outvars[0] in run.host_outs
    assert [e.primitive.name for e in below] == ["mul", "add", "mul"]
    assert [e.primitive.name for e in above] == ["sub"]
