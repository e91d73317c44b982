"""Mesh shapes, kinds of axes and the user's own specs, against one device."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jzero
from tests.end_to_end.oracle import assert_trees_close
from tests.end_to_end.small import MODELS, mlp, mlp_params, rows, step_of

TX = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2))
KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}

# A column-parallel layer, then a row-parallel one.
TENSOR_SPECS = {
    "a": {"w": P(None, "model"), "b": P(None, "model")},
    "c": {"w": P("model"), "b": P()},
}


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def make_mesh(kind: str, **sizes: int) -> Mesh:
    types = (KINDS[kind],) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=types)


def after_three_steps(step: Any, state: Any) -> Any:
    for i in range(3):
        *state, loss = step(*state, rows(i))
    return (*state, loss)


def alone(loss: Any, params: Any) -> Any:
    return after_three_steps(jax.jit(step_of(loss, TX)), (params, TX.init(params)))


@pytest.mark.parametrize("stage", (1, 3))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", ((4, 2), (2, 4), (8, 1), (1, 8)))
def test_tensor_parallel_layers(sizes: Any, kind: str, stage: int) -> None:
    mesh = make_mesh(kind, data=sizes[0], model=sizes[1])
    params = jax.tree.map(
        lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)),
        mlp_params(),
        TENSOR_SPECS,
    )
    step = jzero.shard_train_step(
        step_of(mlp, TX),
        stage=stage,
        mesh=mesh,
        config=jzero.ZeroConfig(persistence_threshold=0),
    )
    state = step.shard((params, TX.init(params)))
    got = after_three_steps(step, state)
    assert_trees_close(got, alone(mlp, mlp_params()), rtol=1e-9)
    wide, tall = got[0]["a"]["w"], got[0]["c"]["w"]
    for leaf in (wide, got[1][1][0].mu["a"]["w"]):
        assert "model" in leaf.sharding.spec and leaf.sharding.spec[1] == "model"
        assert leaf.addressable_shards[0].data.size == wide.size // 8
    assert tall.sharding.spec[0] == "model"
    plan = step.plan(*got[:2], rows(0))
    held = {p.path: p.local_bytes for p in plan.state}
    assert held["params['a']['w']"] == wide.nbytes // 8


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ("scan_remat", "experts"))
def test_users_axis_on_stacked_and_expert_leaves(model: str, kind: str) -> None:
    """Expert weights lie over an `expert` axis, stacked ones over `model`."""
    loss, plain = MODELS[model]
    axis = "expert" if model == "experts" else "model"
    mesh = make_mesh(kind, data=4, **{axis: 2})
    specs = {"router": P(), "up": P(axis), "down": P(axis)}
    if model == "scan_remat":
        specs = {"w": P(None, None, axis), "b": P()}
    params = {
        k: jax.device_put(v, NamedSharding(mesh, specs[k])) for k, v in plain.items()
    }
    config = jzero.ZeroConfig(persistence_threshold=0)
    step = jzero.shard_train_step(step_of(loss, TX), mesh=mesh, config=config)
    got = after_three_steps(step, step.shard((params, TX.init(params))))
    assert_trees_close(got, alone(loss, plain), rtol=1e-9)
    for name, spec in specs.items():
        kept = got[0][name].sharding.spec
        for dim, entry in enumerate(spec):
            assert entry is None or kept[dim] == entry, name


@pytest.mark.parametrize("stage", (0, 2, 3))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", ((2, 4), (4, 2)))
def test_replicas_of_a_sharded_group(sizes: Any, kind: str, stage: int) -> None:
    mesh = make_mesh(kind, replica=sizes[0], data=sizes[1])
    config = jzero.ZeroConfig(persistence_threshold=0, batch_axis=("replica", "data"))
    step = jzero.shard_train_step(
        step_of(mlp, TX), stage=stage, mesh=mesh, config=config
    )
    params = mlp_params()
    got = after_three_steps(step, step.shard((params, TX.init(params))))
    assert_trees_close(got, alone(mlp, params), rtol=1e-9)
    leaf = got[0]["a"]["w"]
    parts = sizes[1] if stage else 1
    assert leaf.addressable_shards[0].data.size == leaf.size // parts


def test_devices_in_an_order_of_the_users_own() -> None:
    order = [3, 1, 0, 2, 7, 6, 5, 4]
    mesh = Mesh(np.array(jax.devices())[order], ("data",))
    config = jzero.ZeroConfig(persistence_threshold=0)
    step = jzero.shard_train_step(step_of(mlp, TX), mesh=mesh, config=config)
    params = mlp_params()
    got = after_three_steps(step, (params, TX.init(params)))
    assert_trees_close(got, alone(mlp, params), rtol=1e-9)
    assert got[0]["a"]["w"].sharding.mesh.devices.tolist() == mesh.devices.tolist()
