"""Weights that are not trained: bit-equal, without moments, and still sharded."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.behaviour.training import assert_like_one_device, num_parts

BASE, DOWN, UP = (24, 16), (24, 4), (4, 16)
HOW = ("set_to_zero", "stop_gradient", "not_differentiated")


def numbers(seed: int, *shape: int) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=shape) * 0.2
    return values.astype(np.float32)


def batches() -> list[tuple[np.ndarray]]:
    return [(numbers(10 + i, 16, 24),) for i in range(3)]


def loss(base: jax.Array, lora: Any, x: jax.Array) -> jax.Array:
    return (jnp.tanh(x @ (base + lora["down"] @ lora["up"])) ** 2).mean()


def make(how: str) -> tuple[Any, Any]:
    """A step `(state, x) -> (state, metrics)` and its state."""
    base = numbers(0, *BASE)
    lora = {"down": numbers(1, *DOWN), "up": numbers(2, *UP)}
    adam = optax.adam(1e-2)
    if how == "set_to_zero":
        parts = {"base": "frozen", "lora": "trained"}
        tx: Any = optax.multi_transform(
            {"trained": adam, "frozen": optax.set_to_zero()}, parts
        )
    else:
        tx = adam

    def step(state: Any, x: jax.Array) -> Any:
        frozen = state["params"]["base"]
        if how == "set_to_zero":
            value, grads = jax.value_and_grad(lambda p: loss(p["base"], p["lora"], x))(
                state["params"]
            )
            updates, opt = tx.update(grads, state["opt"], state["params"])
            params = optax.apply_updates(state["params"], updates)
            return {"params": params, "opt": opt}, {"loss": value}
        if how == "stop_gradient":
            frozen = jax.lax.stop_gradient(frozen)
        trained = state["params"]["lora"]
        value, grads = jax.value_and_grad(lambda p: loss(frozen, p, x))(trained)
        updates, opt = tx.update(grads, state["opt"], trained)
        trained = optax.apply_updates(trained, updates)
        params = {"base": state["params"]["base"], "lora": trained}
        return {"params": params, "opt": opt}, {"loss": value}

    params = jax.tree.map(jnp.asarray, {"base": base, "lora": lora})
    opt = tx.init(params if how == "set_to_zero" else params["lora"])
    return step, {"params": params, "opt": opt}


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("how", HOW)
def test_frozen_base_under_trained_lora(how: str, stage: int) -> None:
    step, start = make(how)
    state, _ = assert_like_one_device(step, start, batches(), stage=stage)
    base = state["params"]["base"]
    np.testing.assert_array_equal(base, numbers(0, *BASE))
    assert num_parts(base) == (8 if stage else 1)
    assert not np.array_equal(state["params"]["lora"]["up"], numbers(2, *UP))
    moments = [x for x in jax.tree.leaves(state["opt"]) if x.shape == BASE]
    assert not moments
