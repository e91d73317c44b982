"""Random leaves, and the update in float64 that they are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_kernels import (
    AdamW,
    LeafFormat,
    LeafState,
    Scalars,
    choose_tile,
    scales_shape,
)

RULE = AdamW(weight_decay=0.1)
SCALARS = Scalars(0.5, 1e-2, 0.271, 0.002997, 0.0)


def random_leaf(
    seed: int,
    shape: Sequence[int],
    *,
    is_coded: bool = False,
    dtype: Any = jnp.float32,
    grad_dtype: Any = jnp.float32,
    **form: Any,
) -> tuple[LeafFormat, LeafState]:
    """Returns the format and the arrays of an AdamW leaf."""
    rng = np.random.default_rng(seed)
    tile = choose_tile(shape) if is_coded else None
    param = jnp.asarray(rng.normal(size=shape), dtype)
    grad = jnp.asarray(rng.normal(size=shape), grad_dtype)
    if tile is None:
        moments = (rng.normal(size=shape), rng.uniform(0.01, 1, shape))
        state = LeafState(param, grad, tuple(jnp.float32(m) for m in moments))
    else:
        few = scales_shape(shape, tile)
        state = LeafState(
            param,
            grad,
            (
                jnp.asarray(rng.integers(-128, 128, shape), jnp.int8),
                jnp.asarray(rng.integers(0, 256, shape), jnp.uint8),
            ),
            tuple(jnp.float32(rng.uniform(0.1, 1, few)) for _ in range(2)),
        )
    return LeafFormat(tile=tile, **form), state


def adamw_float64(state: LeafState, scalars: Scalars = SCALARS) -> list[np.ndarray]:
    """Parameter and moments after one AdamW step, written down anew."""
    p, g, m, v = (np.asarray(a, np.float64) for a in (*state[:2], *state.moments))
    g = g * scalars.grad_scale
    m = RULE.b1 * m + (1 - RULE.b1) * g
    v = RULE.b2 * v + (1 - RULE.b2) * g**2
    step = (m / scalars.bias1) / (np.sqrt(v / scalars.bias2) + RULE.eps)
    return [p - scalars.learning_rate * (step + RULE.weight_decay * p), m, v]
