"""The state of fused optimizers, and the numbers of both ways."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jzero
from jzero.errors import ConfigError

PARAMS = {
    "wte": jnp.ones((32, 256)),
    "kernel": jax.random.normal(jax.random.key(0), (64, 512)),
    "bias": jnp.ones(512),
}
GRADS = jax.tree.map(lambda p: jnp.sin(p * 7), PARAMS)


def num_bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def test_coded_state_is_two_bytes_for_each_element() -> None:
    state = jzero.optim.adamw(1e-3, state="int8").init({"kernel": PARAMS["kernel"]})
    assert num_bytes(state) / PARAMS["kernel"].size <= 2.1
    assert state.mu["kernel"].shape == state.nu["kernel"].shape == (64, 512)
    assert (state.mu["kernel"].dtype, state.nu["kernel"].dtype) == ("int8", "uint8")
    assert state.mu_scales["kernel"].shape == (64, 2)


def test_embeddings_and_small_leaves_keep_float32() -> None:
    state = jzero.optim.adamw(1e-3, state="int8").init(PARAMS)
    for name in ("wte", "bias"):
        assert state.mu[name].dtype == jnp.float32
        assert state.mu_scales[name] is None
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))


def test_states_hold_nothing_that_is_not_needed() -> None:
    state = jzero.optim.sgd(1e-3).init(PARAMS)
    assert len(jax.tree.leaves(state)) == 1 + len(PARAMS)
    params = {"w": jnp.ones(2, jnp.bfloat16)}
    tx = jzero.optim.lion(1e-3, rounding="stochastic", seed=9)
    state = tx.init(params)
    assert (state.seed.dtype, int(state.seed)) == (jnp.uint32, 9)
    assert state.mu["w"].dtype == jnp.float32


@pytest.mark.parametrize("state", ("f32", "int8"))
def test_deltas_and_fused_updates_agree(state: Any) -> None:
    tx = jzero.optim.adamw(1e-2, state=state, clip_norm=1.0)
    deltas, one = jax.jit(tx.update)(GRADS, tx.init(PARAMS), PARAMS)
    params, two, copies = jax.jit(tx.apply)(GRADS, tx.init(PARAMS), PARAMS)
    assert copies is None
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_array_equal(a, b)
    added = optax.apply_updates(PARAMS, deltas)
    for a, b in zip(jax.tree.leaves(added), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-7, atol=1e-9)


@pytest.mark.parametrize("rounding", ("nearest", "stochastic"))
def test_deltas_lead_16_bits_to_the_same_bits(rounding: Any) -> None:
    tx = jzero.optim.adamw(1e-3, params="bf16", rounding=rounding)
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), PARAMS)
    deltas, _ = jax.jit(tx.update)(GRADS, tx.init(params), params)
    fused, _, _ = jax.jit(tx.apply)(GRADS, tx.init(params), params)
    added = optax.apply_updates(params, deltas)
    for a, b in zip(jax.tree.leaves(added), jax.tree.leaves(fused), strict=True):
        assert a.dtype == b.dtype == jnp.bfloat16
        np.testing.assert_array_equal(*(np.asarray(x, np.float32) for x in (a, b)))


def test_rounding_by_chance_follows_seed_and_count() -> None:
    params = {"w": jnp.ones(4096, jnp.bfloat16)}
    grads = {"w": jnp.ones(4096)}

    def new(seed: int, num_steps: int) -> np.ndarray:
        tx = jzero.optim.sgd(1e-3, momentum=0.0, rounding="stochastic", seed=seed)
        state, values, apply = tx.init(params), params, jax.jit(tx.apply)
        for _ in range(num_steps):
            values, state, _ = apply(grads, state, params)
        return np.asarray(values["w"], np.float32)

    first = new(0, 1)
    assert set(first) == {1.0, 1 - 2**-8}
    np.testing.assert_array_equal(first, new(0, 1))
    assert (first != new(1, 1)).any()
    assert (first != new(0, 2)).any()


def test_a_skip_leaves_every_bit_of_state_and_parameters() -> None:
    tx = jzero.optim.adamw(optax.linear_schedule(1e-2, 0, 10), state="int8")
    apply = jax.jit(tx.apply)
    params, state, _ = apply(GRADS, tx.init(PARAMS), PARAMS, skip=False)
    bad = jax.tree.map(lambda g: g * jnp.nan, GRADS)
    kept = apply(bad, state, params, skip=True)
    before, after = jax.tree.leaves((params, state)), jax.tree.leaves(kept[:2])
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


def test_gradients_are_unscaled_before_they_are_clipped() -> None:
    tx = jzero.optim.sgd(1.0, momentum=0.0, clip_norm=1.0)
    params = {"w": jnp.zeros(2)}
    big = {"w": jnp.float32([3e30, 4e30])}
    new, _, _ = tx.apply(big, tx.init(params), params, grad_scale=1e-30)
    np.testing.assert_allclose(new["w"], [-0.6, -0.8], rtol=1e-6)
    new, _, _ = tx.apply(big, tx.init(params), params, grad_scale=1e-31)
    np.testing.assert_allclose(new["w"], [-0.3, -0.4], rtol=1e-6)


def test_parameters_are_asked_for_where_needed() -> None:
    tx = jzero.optim.adam(1e-2)
    deltas, _ = jax.jit(tx.update)(GRADS, tx.init(PARAMS))
    assert deltas["bias"].shape == (512,)
    with pytest.raises(ConfigError, match="need the parameters"):
        decayed = jzero.optim.adamw(1e-2)
        decayed.update(GRADS, decayed.init(PARAMS))
