"""The training state: one pass where the optimizer can, optax's way where not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jzero

PARAMS = {"w": jnp.linspace(0, 1, 8)}
GRADS = {"w": jnp.linspace(-1, 1, 8)}
OPTIMIZERS: dict[str, Any] = {
    "optax": optax.adamw(1e-2),
    "fused": jzero.optim.adamw(1e-2),
    "masters": jzero.optim.with_master_weights(jzero.optim.adamw(1e-2)),
}


def create(name: str, **fields: Any) -> jzero.TrainState:
    return jzero.TrainState.create(
        apply_fn=None, params=PARAMS, tx=OPTIMIZERS[name], **fields
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_same_step_by_any_of_them(name: str) -> None:
    state = create(name).apply_gradients(grads=GRADS)
    tx = OPTIMIZERS["optax"]
    updates, _ = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    want = optax.apply_updates(PARAMS, updates)
    np.testing.assert_allclose(state.params["w"], want["w"], rtol=1e-6)
    assert int(state.step) == 1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_overflow_leaves_every_bit_but_the_scale(name: str) -> None:
    state = create(name, loss_scale=jzero.precision.DynamicLossScale(8.0))
    state = state.apply_gradients(grads=GRADS)
    bad = {"w": GRADS["w"].at[3].set(jnp.inf)}
    after = state.apply_gradients(grads=bad)
    assert float(after.loss_scale.scale) == 4.0
    kept = [(s.step, s.params, s.opt_state) for s in (state, after)]
    for a, b in zip(*map(jax.tree.leaves, kept), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_of_a_scaled_loss_are_unscaled(name: str) -> None:
    scaled = create(name, loss_scale=jzero.precision.DynamicLossScale(8.0))
    assert float(scaled.scale_loss(jnp.float32(2.0))) == 16.0
    assert float(create(name).scale_loss(jnp.float32(2.0))) == 2.0
    grads = jax.tree.map(lambda g: g * 8, GRADS)
    one = scaled.apply_gradients(grads=grads)
    two = create(name).apply_gradients(grads=GRADS)
    np.testing.assert_allclose(one.params["w"], two.params["w"], rtol=1e-6)


def test_it_is_a_tree_without_model_and_optimizer() -> None:
    state = create("fused")
    leaves = jax.tree.leaves(state)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    moved = jax.jit(lambda s, g: s.apply_gradients(grads=g))(state, GRADS)
    assert jax.tree.structure(moved) == jax.tree.structure(state)
    assert state.replace(step=jnp.asarray(7)).step == 7
