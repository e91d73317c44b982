"""Gradients of micro-batches are averaged once, whoever adds them up."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.behaviour.training import num_parts, train

MICRO_GRADIENTS = (1.0, 2.0, 3.0, 6.0)
AFTER_WINDOWS = (-3.0, -6.0)
WRONG = {
    "summed, not averaged": -12.0,
    "only the last micro-batch": -6.0,
    "divided by the devices too": -3.0 / 8,
    "counted once per device": -24.0,
}


def micro_rows(gradient: float) -> np.ndarray:
    """Sixteen rows of this mean that differ, so that each device has its own."""
    return (gradient + np.arange(16) - 7.5).astype(np.float32)


def loss(w: jax.Array, rows: jax.Array) -> jax.Array:
    """Its gradient is the mean of the rows, in every element."""
    return (rows.mean() * w).sum()


def zeros() -> dict[str, np.ndarray]:
    return {"w": np.zeros(8, np.float32)}


def check(w: Any, wanted: float) -> None:
    seen = float(np.asarray(w)[0])
    fault = next((k for k, v in WRONG.items() if np.isclose(seen, v)), "unknown")
    if wanted == AFTER_WINDOWS[0]:
        assert np.isclose(seen, wanted), f"{seen}: {fault}"
    np.testing.assert_allclose(w, np.full(8, wanted), rtol=1e-6)


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("is_split", (True, False))
def test_in_the_users_scan(stage: int, is_split: bool) -> None:
    def step(state: Any, rows: jax.Array) -> Any:
        micros = rows if is_split else rows.reshape(4, 16)

        def turn(total: jax.Array, micro: jax.Array) -> Any:
            return total + jax.grad(loss)(state["w"], micro), None

        total, _ = jax.lax.scan(turn, jnp.zeros(8), micros)
        return {"w": state["w"] - total / 4}, {}

    window = np.stack([micro_rows(g) for g in MICRO_GRADIENTS])
    batch = window if is_split else window.reshape(64)
    for num_windows, wanted in enumerate(AFTER_WINDOWS, 1):
        state, _ = train(step, zeros(), [(batch,)] * num_windows, stage=stage)
        check(state["w"], wanted)


@pytest.mark.parametrize("stage", range(4))
def test_by_optax_multi_steps(stage: int) -> None:
    tx = optax.MultiSteps(optax.sgd(1.0), 4)

    def step(state: Any, rows: jax.Array) -> Any:
        grads = jax.grad(lambda p: loss(p["w"], rows))(state["params"])
        updates, opt = tx.update(grads, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt": opt}, {"w": params["w"] + 0}

    params = jax.tree.map(jnp.asarray, zeros())
    batches = [(micro_rows(g),) for g in MICRO_GRADIENTS] * 2
    state, seen = train(
        step, {"params": params, "opt": tx.init(params)}, batches, stage=stage
    )
    for done, metrics in enumerate(seen, 1):
        check(metrics["w"], (0.0, *AFTER_WINDOWS)[done // 4])
    assert num_parts(state["opt"].acc_grads["w"]) == (8 if stage else 1)
