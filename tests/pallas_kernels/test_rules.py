"""The arithmetic of each optimizer against optax, over 100 steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pallas_kernels import (
    AdamW,
    LeafFormat,
    LeafState,
    Lion,
    Momentum,
    Scalars,
    fused_update,
)

LEARNING_RATE = 1e-2
SHAPES = ((), (1,), (0,), (257,), (3, 5, 17))
RULES: dict[str, tuple[Any, Any]] = {
    "adamw": (AdamW(weight_decay=0.1), optax.adamw(LEARNING_RATE, weight_decay=0.1)),
    "adamw without decay": (
        AdamW(weight_decay=0.0, b1=0.8, b2=0.95, eps=1e-6, eps_root=1e-9),
        optax.adam(LEARNING_RATE, b1=0.8, b2=0.95, eps=1e-6, eps_root=1e-9),
    ),
    "adam with L2": (
        AdamW(weight_decay=0.1, is_l2=True),
        optax.chain(optax.add_decayed_weights(0.1), optax.adam(LEARNING_RATE)),
    ),
    "lion": (
        Lion(weight_decay=0.1),
        optax.lion(LEARNING_RATE, weight_decay=0.1),
    ),
    "momentum": (
        Momentum(weight_decay=0.1),
        optax.chain(
            optax.add_decayed_weights(0.1), optax.sgd(LEARNING_RATE, momentum=0.9)
        ),
    ),
    "nesterov": (
        Momentum(nesterov=True),
        optax.sgd(LEARNING_RATE, momentum=0.9, nesterov=True),
    ),
}


DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
CASES = [(name, jnp.float32) for name in RULES] + [("adamw", d) for d in DTYPES[1:]]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_equals_optax_over_100_steps(name: str, dtype: Any) -> None:
    rule, tx = RULES[name]
    rng = np.random.default_rng(0)
    params = [jnp.asarray(rng.normal(size=s), jnp.float32) for s in SHAPES]
    grads = [jnp.asarray(rng.normal(size=(100, *s)), dtype) for s in SHAPES]
    zeros = [tuple(jnp.zeros(p.shape) for _ in rule.signs) for p in params]
    betas = getattr(rule, "b1", 0.0), getattr(rule, "b2", 0.0)

    def turn(carry: Any, step: Any) -> Any:
        params, moments, others, state = carry
        count, grads = step
        count = count + 1
        scalars = Scalars(
            1.0, LEARNING_RATE, 1 - betas[0] ** count, 1 - betas[1] ** count, 0
        )
        rows = zip(params, grads, moments, strict=True)
        done = fused_update(
            [rule] * len(params),
            [LeafFormat()] * len(params),
            [LeafState(p, g, m) for p, g, m in rows],
            scalars,
        )
        wide = [g.astype(jnp.float32) for g in grads]
        updates, state = tx.update(wide, state, others)
        others = optax.apply_updates(others, updates)
        return ([d.param for d in done], [d.moments for d in done], others, state), None

    start = (params, zeros, params, tx.init(params))
    (got, moments, want, _), _ = jax.lax.scan(turn, start, (jnp.arange(100), grads))
    for one, other, kept in zip(got, want, moments, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
        assert all(m.dtype == jnp.float32 for m in kept)


def test_the_gradient_is_scaled_before_anything_else() -> None:
    rule = Momentum(weight_decay=0.5)
    _, (trace,) = rule.step(2.0, 3.0 * 0.1, (0.0,), Scalars(0.1, 1.0, 1.0, 1.0, 0))
    state = LeafState(jnp.array(2.0), jnp.array(3.0), (jnp.array(0.0),))
    (new,) = fused_update([rule], [LeafFormat()], [state], Scalars(0.1, 1.0, 1, 1, 0))
    np.testing.assert_allclose(new.moments[0], trace, rtol=1e-6)
