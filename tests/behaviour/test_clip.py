"""A norm is that of the whole gradient: no shard's, and no leaf counted twice."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.behaviour.training import (
    assert_like_one_device,
    assert_same_on_every_device,
)

# w is sharded and b is whole on every device: sqrt(8 * 3^2 + 1^2).
NORM = 8.5440037
ROWS = (np.arange(16) - 7.5).astype(np.float32)


def loss(params: Any, rows: jax.Array) -> jax.Array:
    return (3 + rows.mean()) * params["w"].sum() + (1 + rows.mean()) * params["b"]


def make_step(tx: optax.GradientTransformation) -> Any:
    def step(state: Any, rows: jax.Array) -> Any:
        grads = jax.grad(loss)(state["params"], rows)
        updates, opt = tx.update(grads, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        new = {"params": params, "opt": opt}
        return new, {"norm": optax.tree.norm(grads), "new_w": params["w"].sum()}

    return step


def make_state(tx: optax.GradientTransformation, w: float = 0.0) -> Any:
    params = {"w": jnp.full(8, w), "b": jnp.asarray(w)}
    return {"params": params, "opt": tx.init(params)}


@pytest.mark.parametrize("num_devices", (2, 8))
@pytest.mark.parametrize("stage", range(4))
def test_global_norm(stage: int, num_devices: int) -> None:
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0))
    state, (metrics,) = assert_like_one_device(
        make_step(tx), make_state(tx), [(ROWS,)], stage=stage, num_devices=num_devices
    )
    norm = float(metrics["norm"])
    assert not np.isclose(norm, 8.944, atol=1e-3), "b counted once per device"
    assert norm == pytest.approx(NORM, rel=1e-6)
    assert_same_on_every_device(metrics)
    w = np.asarray(state["params"]["w"])
    assert not np.isclose(w[0], -0.9487, atol=1e-3), "clipped by a shard's norm"
    np.testing.assert_allclose(w, np.full(8, -0.351123), rtol=1e-5)
    assert float(state["params"]["b"]) == pytest.approx(-0.117041, rel=1e-5)


OTHERS = {
    "clip": optax.clip(0.5),
    "adaptive_grad_clip": optax.adaptive_grad_clip(0.1),
    "block_rms": optax.clip_by_block_rms(0.5),
    "trust_ratio": optax.scale_by_trust_ratio(),
    "normalize_by_update_norm": optax.normalize_by_update_norm(),
}


@pytest.mark.parametrize("stage", (1, 3))
@pytest.mark.parametrize("name", OTHERS)
def test_other_norms(name: str, stage: int) -> None:
    tx = optax.chain(OTHERS[name], optax.sgd(0.1, momentum=0.9))
    assert_like_one_device(
        make_step(tx), make_state(tx, w=0.7), [(ROWS,), (ROWS + 1,)], stage=stage
    )
