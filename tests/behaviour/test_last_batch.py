"""The short batch at the end of an epoch: refused by number, or padded and masked."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jzero
from tests.end_to_end.oracle import SHARD_ALL, mesh_of

DATA = np.arange(10, dtype=np.float32)
TRUE_GRADIENT = 4.5
WRONG = {
    "the last rows dropped": 3.5,
    "padding counted in the mean": 2.8125,
    "a mean of device means": 3.75,
}


def step_fn(state: Any, x: jax.Array, mask: jax.Array) -> Any:
    def loss(w: jax.Array) -> jax.Array:
        return ((w[None] * x[:, None]).mean(1) * mask).sum() / mask.sum()

    grad = jax.grad(loss)(state["w"]) * state["w"].size
    return {"w": state["w"] - grad}, {"grad": grad[0]}


def make_state() -> Any:
    return {"w": jnp.zeros(8)}


@pytest.mark.parametrize("stage", range(4))
def test_padded_and_masked(stage: int) -> None:
    step = jzero.shard_train_step(step_fn, stage=stage, config=SHARD_ALL)
    x = np.zeros(16, np.float32)
    x[:10] = DATA
    mask = (np.arange(16) < 10).astype(np.float32)
    state, metrics = step(make_state(), x, mask)
    seen = float(metrics["grad"])
    fault = next((k for k, v in WRONG.items() if np.isclose(seen, v)), "unknown")
    assert np.isclose(seen, TRUE_GRADIENT), f"{seen}: {fault}"
    np.testing.assert_allclose(state["w"], np.full(8, -TRUE_GRADIENT), rtol=1e-6)


@pytest.mark.parametrize("num_devices", (3, 4, 8))
def test_short_batch_is_refused_and_the_state_is_kept(num_devices: int) -> None:
    step = jzero.shard_train_step(step_fn, mesh=mesh_of(num_devices), config=SHARD_ALL)
    good = np.arange(2 * num_devices, dtype=np.float32)
    state, _ = step(make_state(), good, np.ones_like(good))
    with pytest.raises(jzero.BatchError) as error:
        step(state, DATA, np.ones_like(DATA))
    below = 10 // num_devices * num_devices
    for part in (
        "batch of 10",
        f"{num_devices} devices",
        "x ",
        "mask ",
        "(10,)",
        f"{below} or {below + num_devices}",
        "Remedy",
    ):
        assert part in str(error.value)
    with pytest.raises(jzero.BatchError, match="10"):
        step.shard_batch((DATA, np.ones_like(DATA)))
    state, _ = step(state, good, np.ones_like(good))
    assert np.isfinite(np.asarray(state["w"])).all()


def test_one_device_takes_any_batch() -> None:
    step = jzero.shard_train_step(step_fn, mesh=mesh_of(1), config=SHARD_ALL)
    _, metrics = step(make_state(), DATA, np.ones_like(DATA))
    assert float(metrics["grad"]) == pytest.approx(TRUE_GRADIENT)
