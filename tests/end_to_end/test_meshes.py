"""Meshes with Explicit axes, and with further axes of the user's own."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jzero
from tests.end_to_end.oracle import SHARD_ALL, assert_trees_close, check_parity
from tests.end_to_end.small import mlp, mlp_params, rows, step_of

TX = optax.adam(1e-2)


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def _state() -> tuple[Any, Any]:
    params = mlp_params()
    return params, TX.init(params)


def _alone(num_steps: int) -> tuple[Any, ...]:
    state = _state()
    for i in range(num_steps):
        *state, loss = step_of(mlp, TX)(*state, rows(i))
    return (*state, loss)


def _run(sharded: jzero.TrainStep, state: Any, put: Any = lambda x: x) -> None:
    for i in range(3):
        *state, loss = sharded(*state, put(rows(i)))
    assert_trees_close((*state, loss), _alone(3), rtol=1e-9)


def test_explicit_mesh_is_accepted() -> None:
    mesh = jax.make_mesh((8,), ("data",))
    assert mesh.axis_types == (AxisType.Explicit,)
    check_parity(
        step_of(mlp, TX),
        _state(),
        lambda i: (rows(i),),
        lambda out: out[:2],
        mesh=mesh,
    )


def test_arrays_on_an_explicit_mesh_are_accepted() -> None:
    mesh = jax.make_mesh((8,), ("data",))
    sharded = jzero.shard_train_step(step_of(mlp, TX), mesh=mesh, config=SHARD_ALL)
    state = jax.device_put(_state(), NamedSharding(mesh, P()))
    _run(sharded, state, lambda x: jax.device_put(x, NamedSharding(mesh, P("data"))))


def test_an_explicit_mesh_in_context() -> None:
    mesh = jax.make_mesh((8,), ("data",))
    with jax.set_mesh(mesh):
        sharded = jzero.shard_train_step(step_of(mlp, TX), mesh=mesh, config=SHARD_ALL)
        _run(sharded, _state())


def _tensor_mesh() -> Mesh:
    auto = (AxisType.Auto,) * 2
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=auto)


def test_specs_of_a_placed_state_are_kept_and_extended() -> None:
    mesh = _tensor_mesh()
    params = mlp_params()
    specs = {"a": {"w": P(None, "model"), "b": P(None, "model")}}
    specs["c"] = {"w": P("model"), "b": P()}
    params = jax.tree.map(
        lambda x, s: jax.device_put(x, NamedSharding(mesh, s)), params, specs
    )
    sharded = jzero.shard_train_step(step_of(mlp, TX), mesh=mesh, config=SHARD_ALL)
    state = sharded.shard((params, TX.init(params)))
    wanted = {"a": P("data", "model"), "c": P("model", "data")}
    for name, spec in wanted.items():
        for leaf in (state[0][name]["w"], state[1][0].mu[name]["w"]):
            assert leaf.sharding.spec == spec
    _run(sharded, state)


def test_constraints_in_create_fn_are_kept_and_extended() -> None:
    mesh = _tensor_mesh()

    def create():
        params = jax.tree.map(jax.numpy.asarray, mlp_params())
        by_columns = NamedSharding(mesh, P(None, "model"))
        w = jax.lax.with_sharding_constraint(params["a"]["w"], by_columns)
        params["a"]["w"] = w
        return params, TX.init(params)

    sharded = jzero.shard_train_step(step_of(mlp, TX), mesh=mesh, config=SHARD_ALL)
    state = sharded.init(create)
    for leaf in (state[0]["a"]["w"], state[1][0].mu["a"]["w"]):
        assert leaf.sharding.spec == P("data", "model")
    _run(sharded, state)


def test_a_replica_axis_splits_the_batch_only() -> None:
    auto = (AxisType.Auto,) * 2
    mesh = jax.make_mesh((2, 4), ("replica", "data"), axis_types=auto)
    config = jzero.ZeroConfig(persistence_threshold=0, batch_axis=("replica", "data"))
    sharded = jzero.shard_train_step(step_of(mlp, TX), mesh=mesh, config=config)
    plan = sharded.plan(*_state(), rows(0))
    assert {p.spec for p in plan.state if p.path.endswith("['w']")} == {P("data")}
    assert plan.batch[0].spec == P(("replica", "data"))
    _run(sharded, _state())


def test_two_zero_axes() -> None:
    auto = (AxisType.Auto,) * 2
    mesh = jax.make_mesh((2, 4), ("host", "chip"), axis_types=auto)
    config = jzero.ZeroConfig(persistence_threshold=0, axis=("host", "chip"))
    sharded = jzero.shard_train_step(step_of(mlp, TX), mesh=mesh, config=config)
    plan = sharded.plan(*_state(), rows(0))
    assert ("host", "chip") in {e for p in plan.state for e in p.spec}
    _run(sharded, _state())


def test_a_state_placed_otherwise_is_moved_with_a_warning_once() -> None:
    sharded = jzero.shard_train_step(step_of(mlp, TX), config=SHARD_ALL)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    params, opt_state = _state()
    elsewhere = NamedSharding(mesh, P(None, "data"))
    params["a"]["w"] = jax.device_put(params["a"]["w"], elsewhere)
    state = (params, opt_state)
    with pytest.warns(UserWarning, match=r"(?s)params\['a'\]\['w'\].*step.shard"):
        *state, _ = sharded(*state, rows(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        *state, loss = sharded(*state, rows(1))
    assert_trees_close((*state, loss), _alone(2), rtol=1e-9)
