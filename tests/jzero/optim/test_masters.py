"""Float32 masters of 16-bit parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jzero

PARAMS = {"w": jnp.ones((4, 8), jnp.bfloat16), "b": jnp.ones(3, jnp.float16)}
GRADS = jax.tree.map(jnp.ones_like, PARAMS)
OPTIMIZERS = {
    "optax": optax.chain(optax.clip_by_global_norm(100.0), optax.sgd(1e-3)),
    "fused": jzero.optim.sgd(1e-3, momentum=0.0, clip_norm=100.0),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("is_applied", (False, True))
def test_small_updates_add_up(name: str, is_applied: bool) -> None:
    tx = jzero.optim.with_master_weights(OPTIMIZERS[name])

    def turn(carry: Any, _: Any) -> Any:
        params, state = carry
        if is_applied:
            return tx.apply(GRADS, state, params), None
        deltas, state = tx.update(GRADS, state, params)
        return (optax.apply_updates(params, deltas), state), None

    params, state = jax.lax.scan(turn, (PARAMS, tx.init(PARAMS)), None, length=100)[0]
    np.testing.assert_allclose(state.masters["w"], 0.9, rtol=1e-5)
    assert params["w"].dtype == jnp.bfloat16
    assert set(np.asarray(params["w"], np.float32).ravel()) == {0.8984375}
    assert params["b"].dtype == jnp.float16


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skip_leaves_every_bit(name: str) -> None:
    tx = jzero.optim.with_master_weights(OPTIMIZERS[name])
    apply = jax.jit(tx.apply)
    params, state = apply(GRADS, tx.init(PARAMS), PARAMS, skip=jnp.asarray(False))
    bad = jax.tree.map(lambda g: g * jnp.nan, GRADS)
    kept = apply(bad, state, params, skip=jnp.asarray(True))
    before = jax.tree.leaves((params, state))
    for a, b in zip(before, jax.tree.leaves(kept), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(
            np.asarray(a, np.float32), np.asarray(b, np.float32)
        )


def test_masters_are_copies_also_of_float32() -> None:
    params = {"w": jnp.ones(4)}
    state = jzero.optim.with_master_weights(optax.sgd(1.0)).init(params)
    pointers = [x.unsafe_buffer_pointer() for x in (params["w"], state.masters["w"])]
    assert pointers[0] != pointers[1]


def test_the_optimizer_inside_sees_float32_alone() -> None:
    seen: list[Any] = []

    def update(grads: Any, state: Any, params: Any) -> Any:
        seen.extend(jax.tree.leaves((grads, params)))
        return grads, state

    inner = optax.GradientTransformation(lambda params: (), update)
    tx = jzero.optim.with_master_weights(inner)
    tx.update(GRADS, tx.init(PARAMS), PARAMS)
    assert {leaf.dtype for leaf in seen} == {jnp.dtype(jnp.float32)}
