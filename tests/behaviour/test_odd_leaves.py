"""Leaves that are not matrices of floats come through bit for bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.behaviour.training import assert_like_one_device, num_parts

TX = optax.adam(1e-2)
TRAINED = ("w", "scalar", "one", "empty")


def make_state() -> dict[str, Any]:
    trained = {
        "w": jnp.ones((16, 4)),
        "scalar": jnp.asarray(0.5),
        "one": jnp.ones(1),
        "empty": jnp.zeros((0,)),
    }
    kept = {
        "table": jnp.arange(64, dtype=jnp.int32) * 3,
        "flag": jnp.asarray(True),
        "bytes": jnp.arange(8, dtype=jnp.uint8),
        "half": jnp.full((8,), 1.0009765625, jnp.float16),
        "key": jax.random.key(3),
        "raw_key": jax.random.PRNGKey(3),
    }
    return {"trained": trained, "kept": kept, "opt": TX.init(trained)}


def step(state: Any, ids: jax.Array, x: jax.Array) -> Any:
    kept = state["kept"]

    def loss(p: Any) -> jax.Array:
        looked_up = kept["table"][ids].astype(jnp.float32)
        y = (x @ p["w"]).sum(1) * p["scalar"] + looked_up
        y = jnp.where(kept["flag"], y, 0.0)
        return (y**2).mean() + p["one"].sum() + p["empty"].sum()

    value, grads = jax.value_and_grad(loss)(state["trained"])
    updates, opt = TX.update(grads, state["opt"])
    trained = optax.apply_updates(state["trained"], updates)
    noise = jax.random.normal(kept["key"], ())
    new = {"trained": trained, "kept": kept, "opt": opt}
    return new, {"loss": value, "noise": noise}


@pytest.mark.parametrize("num_devices", (3, 8))
@pytest.mark.parametrize("stage", range(4))
def test_odd_leaves(stage: int, num_devices: int) -> None:
    num_rows = 24
    ids = np.arange(num_rows, dtype=np.int32)
    x = np.random.default_rng(0).normal(size=(num_rows, 16)).astype(np.float32)
    state, _ = assert_like_one_device(
        step, make_state(), [(ids, x)] * 3, stage=stage, num_devices=num_devices
    )
    start = make_state()
    for name, want in start["kept"].items():
        got = state["kept"][name]
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if name == "key":
            got, want = jax.random.key_data(got), jax.random.key_data(want)
        np.testing.assert_array_equal(got, want)
        assert got.is_fully_replicated
    assert num_parts(state["trained"]["w"]) == (8 if stage and num_devices == 8 else 1)
    assert state["trained"]["empty"].shape == (0,)
