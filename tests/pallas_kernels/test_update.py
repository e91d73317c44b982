"""One leaf: skipped steps, adversarial gradients, rounding, copies."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import (
    AdamW,
    LeafFormat,
    LeafState,
    Lion,
    Momentum,
    Scalars,
    code_dtype,
    update_leaf,
)
from pallas_kernels.rounding import step_key

SHAPE, TILE = (16, 256), (1, 256)
update = jax.jit(update_leaf, static_argnums=(0, 1))
ONE = Scalars(1.0, 1e-2, 0.1, 0.001, 0.0)


def coded_state(rule: Any, grad: jax.Array) -> LeafState:
    return LeafState(
        jnp.ones(SHAPE),
        grad,
        tuple(jnp.zeros(SHAPE, code_dtype(sign)) for sign in rule.signs),
        tuple(jnp.zeros((16, 1)) for _ in rule.signs),
    )


# One adversary in the rows of each; a row is a block, so they do not meet.
ADVERSARIES: dict[str, Any] = {
    "zeros": lambda step: jnp.zeros(SHAPE),
    "1e-30": lambda step: jnp.full(SHAPE, 1e-30),
    "1e30": lambda step: jnp.full(SHAPE, 1e30),
    "the largest float": lambda step: jnp.full(SHAPE, 3.4e38),
    "a spike": lambda step: (
        jnp.full(SHAPE, 1e-3).at[3, 7].set(jnp.where(step == 5, 1e30, 1e-3))
    ),
    "signs that change": lambda step: jnp.full(SHAPE, 1.0) * (-1.0) ** step,
}


@pytest.mark.parametrize(
    "rule", (AdamW(), Lion(), Momentum()), ids=lambda r: str(r)[:5]
)
def test_no_gradient_makes_nan(rule: Any) -> None:
    def turn(state: LeafState, step: jax.Array) -> Any:
        grads = [make(step) for make in ADVERSARIES.values()]
        state = state._replace(grad=jnp.concatenate(grads))
        bias1, bias2 = 1 - 0.9 ** (step + 1), 1 - 0.999 ** (step + 1)
        new = update_leaf(
            rule, LeafFormat(tile=TILE), state, Scalars(1.0, 1e-3, bias1, bias2, 0.0)
        )
        return LeafState(new.param, state.grad, new.moments, new.scales), new.param

    one = coded_state(rule, jnp.zeros(SHAPE))
    start = jax.tree.map(lambda x: jnp.concatenate([x] * len(ADVERSARIES)), one)
    state, params = jax.lax.scan(turn, start, jnp.arange(40))
    assert not bool(jnp.isnan(params).any())
    assert all(bool(jnp.isfinite(scale).all()) for scale in state.scales)
    moved = jnp.abs(params - 1).reshape(40, len(ADVERSARIES), *SHAPE).max((0, 3))
    for name, rows in zip(ADVERSARIES, moved, strict=True):
        # Momentum has no limit of its own: large gradients are large steps.
        is_free = isinstance(rule, Momentum) and name in ("1e30", "the largest float")
        is_struck = isinstance(rule, Momentum) and name == "a spike"
        quiet = jnp.delete(rows, 3) if is_struck else rows
        assert is_free or float(quiet.max()) < 0.1, name


def test_a_second_moment_that_fades_makes_no_leap() -> None:
    """Elements far smaller than their block's largest one move less, never more."""
    grad = jnp.full(SHAPE, 1e-6).at[:, 0].set(1.0)
    new = update(
        AdamW(weight_decay=0.0), LeafFormat(tile=TILE), coded_state(AdamW(), grad), ONE
    )
    state = LeafState(new.param, jnp.zeros(SHAPE), new.moments, new.scales)
    new = update(AdamW(weight_decay=0.0), LeafFormat(tile=TILE), state, ONE)
    assert float(jnp.abs(new.param - 1)[:, 1:].max()) <= 2.1e-2


@pytest.mark.parametrize("is_coded", (False, True))
@pytest.mark.parametrize("dtype", (jnp.float32, jnp.bfloat16))
def test_a_skipped_step_leaves_every_bit(is_coded: bool, dtype: Any) -> None:
    keys = jax.random.split(jax.random.key(0), 5)
    param = jax.random.normal(keys[0], SHAPE).astype(dtype)
    grad = jnp.full(SHAPE, jnp.nan)
    if is_coded:
        moments = (
            jax.random.randint(keys[1], SHAPE, -128, 128).astype(jnp.int8),
            jax.random.randint(keys[2], SHAPE, 0, 256).astype(jnp.uint8),
        )
        scales = tuple(jax.random.uniform(k, (16, 1)) for k in keys[3:])
    else:
        moments = tuple(jax.random.normal(k, SHAPE) for k in keys[1:3])
        scales = ()
    form = LeafFormat(tile=TILE if is_coded else None, is_stochastic=True)
    state = LeafState(param, grad, moments, scales)
    new = update(AdamW(), form, state, ONE._replace(skip=1.0), key=jnp.uint32(1))
    kept = (new.param, *new.moments, *new.scales)
    for before, after in zip((param, *moments, *scales), kept, strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)
    assert not bool(new.delta.any())


def test_steps_below_the_resolution_happen_in_expectation() -> None:
    """bfloat16 near 1 moves by 1/128; steps of 1/1000 vanish unless by chance."""
    rule, form = Momentum(decay=0.0), LeafFormat(is_stochastic=True)

    def train(form: LeafFormat) -> float:
        def turn(param: jax.Array, step: jax.Array) -> Any:
            state = LeafState(param, jnp.ones(4096), (jnp.zeros(4096),))
            scalars = Scalars(1.0, 1e-3, 1.0, 1.0, 0.0)
            key = step_key(0, step, 0)
            return update_leaf(rule, form, state, scalars, key=key).param, None

        last, _ = jax.lax.scan(turn, jnp.ones(4096, jnp.bfloat16), jnp.arange(100))
        return float(last.astype(jnp.float32).mean())

    assert train(LeafFormat()) == 1.0
    assert train(form) == pytest.approx(0.9, abs=0.003)


def test_a_copy_in_another_dtype() -> None:
    state = LeafState(jnp.ones(8), jnp.ones(8), (jnp.zeros(8),))
    form = LeafFormat(copy_dtype=jnp.float16)
    new = update(Momentum(), form, state, ONE)
    assert new.copy.dtype == jnp.float16
    np.testing.assert_array_equal(new.copy, new.param.astype(jnp.float16))
