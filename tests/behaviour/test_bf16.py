"""Half-precision compute loses no update and no gradient of a sum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.behaviour.training import train

ONES = np.ones(16, np.float32)


@pytest.mark.parametrize("stage", range(4))
def test_master_weights_take_updates_below_bf16_resolution(stage: int) -> None:
    tx = optax.sgd(1e-3)

    def step(state: Any, rows: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            half = params["w"].astype(jnp.bfloat16)
            return (half * rows.astype(jnp.bfloat16).mean()).sum()

        grads = jax.grad(loss)(state["params"])
        updates, opt = tx.update(grads, state["opt"])
        params = optax.apply_updates(state["params"], updates)
        view = params["w"].astype(jnp.bfloat16)
        return {"params": params, "opt": opt}, {"view": view}

    params = {"w": jnp.ones(8)}
    state = {"params": params, "opt": tx.init(params)}
    state, seen = train(step, state, [(ONES,)] * 100, stage=stage)
    master = np.asarray(state["params"]["w"])
    assert master.dtype == np.float32
    assert not (master == 1.0).any(), "updated in bfloat16: nothing ever moves"
    np.testing.assert_allclose(master, np.full(8, 0.9), rtol=1e-5)
    assert seen[-1]["view"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(seen[-1]["view"].astype(jnp.float32), 0.8984375)


@pytest.mark.parametrize("stage", range(4))
def test_sum_of_512_half_precision_gradients(stage: int) -> None:
    def step(state: Any, micros: jax.Array) -> Any:
        def loss(params: Any, rows: jax.Array) -> jax.Array:
            half = params["w"].astype(jnp.bfloat16)
            return (half * rows.astype(jnp.bfloat16).mean()).sum()

        def turn(total: Any, rows: jax.Array) -> Any:
            grads = jax.grad(loss)(state, rows)
            return jax.tree.map(jnp.add, total, grads), None

        total, _ = jax.lax.scan(turn, jax.tree.map(jnp.zeros_like, state), micros)
        mean = jax.tree.map(lambda g: g / 512, total)
        return jax.tree.map(jnp.subtract, state, mean), {"mean": mean["w"]}

    micros = np.ones((512, 8), np.float32)
    _, (metrics,) = train(step, {"w": jnp.ones(8)}, [(micros,)], stage=stage)
    mean = np.asarray(metrics["mean"])
    assert not (mean == 0.5).any(), "summed in bfloat16: the sum sticks at 256"
    np.testing.assert_array_equal(mean, np.ones(8, np.float32))


@pytest.mark.parametrize("stage", range(4))
def test_moments_keep_their_own_dtype(stage: int) -> None:
    """First moments were asked for in bfloat16, second ones were not."""
    tx = optax.adam(1e-2, mu_dtype=jnp.bfloat16)

    def step(state: Any, rows: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return (rows.astype(jnp.bfloat16) @ params["w"].astype(jnp.bfloat16)).sum()

        value, grads = jax.value_and_grad(loss)(state["params"])
        updates, opt = tx.update(grads, state["opt"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt": opt}, {"loss": value}

    params = {"w": jnp.ones((8, 16))}
    start = {"params": params, "opt": tx.init(params)}
    state, _ = train(step, start, [(np.ones((8, 8), np.float32),)] * 2, stage=stage)
    dtypes = lambda tree: [x.dtype for x in jax.tree.leaves(tree)]  # noqa: E731
    assert dtypes(state) == dtypes(start)
    assert state["opt"][0].mu["w"].dtype == jnp.bfloat16
    assert state["opt"][0].nu["w"].dtype == jnp.float32
