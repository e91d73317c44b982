"""`shard_train_step`: what it accepts and what it refuses at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jzero


def step_fn(state: Any, x: jax.Array) -> Any:
    return jax.tree.map(lambda p: p - x.mean(), state), x.sum()


@pytest.mark.parametrize("stage", (4, -1, "3", True, 2.0))
def test_a_stage_that_does_not_exist(stage: Any) -> None:
    with pytest.raises(jzero.StageError, match=r"0(.|\n)*1(.|\n)*2(.|\n)*3"):
        jzero.shard_train_step(step_fn, stage=stage)


def test_a_mesh_without_the_axis() -> None:
    mesh = jax.make_mesh((8,), ("model",))
    with pytest.raises(jzero.MeshError, match=r"model(.|\n)*'data'(.|\n)*Remedy"):
        jzero.shard_train_step(step_fn, mesh=mesh)


def test_several_axes_need_a_mesh() -> None:
    config = jzero.ZeroConfig(axis=("a", "b"))
    with pytest.raises(jzero.MeshError, match="mesh"):
        jzero.shard_train_step(step_fn, config=config)


def test_contradictions_and_wrong_kinds() -> None:
    with pytest.raises(jzero.ConfigError, match="replicate_params"):
        jzero.shard_train_step(
            step_fn, stage=3, config=jzero.ZeroConfig(replicate_params=True)
        )
    with pytest.raises(jzero.ConfigError, match="ZeroConfig"):
        jzero.shard_train_step(step_fn, config={"axis": "data"})  # type: ignore
    with pytest.raises(jzero.ConfigError, match="callable"):
        jzero.shard_train_step(3)  # type: ignore
    with pytest.raises(jzero.ConfigError, match="mode"):
        jzero.shard_train_step(step_fn, static_argnames="mode")
    with pytest.raises(jzero.ConfigError, match="ints"):
        jzero.shard_train_step(step_fn, state_argnums=("state",))  # type: ignore
    with pytest.raises(jzero.MeshError, match="Mesh"):
        jzero.shard_train_step(step_fn, mesh="data")  # type: ignore


@pytest.mark.parametrize("stage", (1, 2))
def test_replicated_parameters_with_sharded_moments(stage: int) -> None:
    def momentum_step(state, x):
        grads = jax.tree.map(lambda p: p * x.mean(), state["params"])
        mu = jax.tree.map(lambda m, g: 0.9 * m + g, state["mu"], grads)
        params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], mu)
        return {"params": params, "mu": mu}, x.sum()

    config = jzero.ZeroConfig(persistence_threshold=0, replicate_params=True)
    step = jzero.shard_train_step(momentum_step, stage=stage, config=config)
    state = {"params": {"w": jnp.ones((16, 8))}, "mu": {"w": jnp.zeros((16, 8))}}
    new, _ = step(state, jnp.ones((8, 4)))
    assert new["params"]["w"].is_fully_replicated
    assert not new["mu"]["w"].is_fully_replicated
    wanted, _ = momentum_step(state, jnp.ones((8, 4)))
    np.testing.assert_allclose(new["params"]["w"], wanted["params"]["w"], rtol=1e-6)


def test_state_argnums_settles_what_is_ambiguous() -> None:
    def step(w, x):
        return w - x.mean(), x * 2

    w, x = jnp.ones((16, 4)), jnp.ones((16, 4))
    with pytest.raises(jzero.StateError, match="state_argnums"):
        jzero.shard_train_step(step)(w, x)
    config = jzero.ZeroConfig(persistence_threshold=0)
    new, _ = jzero.shard_train_step(step, state_argnums=0, config=config)(w, x)
    assert not new.is_fully_replicated


def test_batch_argnums_settles_sizes_that_differ() -> None:
    def step(w, x, weights):
        return w - x.mean() * weights.sum(), x.sum()

    w, x, weights = jnp.ones((16, 4)), jnp.ones((16, 4)), jnp.ones((10,))
    with pytest.raises(jzero.BatchError, match="batch_argnums"):
        jzero.shard_train_step(step, state_argnums=0)(w, x, weights)
    step = jzero.shard_train_step(step, state_argnums=0, batch_argnums=1)
    plan = step.plan(w, x, weights)
    assert [tuple(p.spec) for p in plan.batch] == [("data",), ()]
