"""One model with its training step, in one of the spellings that users write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax


@dataclass(frozen=True, kw_only=True)
class Case:
    """A step as its user wrote it.

    Attributes:
        step: the step.
        make: makes the state arguments, first in the signature.
        data: number of a step -> the other arguments.
        new_state: picks the new state arguments out of what the step returns.
        settings: what a user of this step passes to `shard_train_step`.
    """

    step: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    data: Callable[[int], tuple[Any, ...]]
    new_state: Callable[[Any], tuple[Any, ...]] = lambda out: out[:1]
    settings: tuple[tuple[str, Any], ...] = ()


def normal(seed: int, *shape: int) -> np.ndarray:
    """Weights of a tenth or so, in double precision."""
    return np.random.default_rng(seed).normal(size=shape) * 0.2


def tokens(step: int, rows: int = 16, length: int = 6, vocab: int = 32) -> np.ndarray:
    """Token numbers of one batch."""
    draw = np.random.default_rng(2000 + step).integers
    return draw(0, vocab, size=(rows, length)).astype(np.int32)


def vectors(step: int, rows: int = 16, width: int = 24) -> np.ndarray:
    """Rows of one batch, in double precision."""
    return np.random.default_rng(1000 + step).normal(size=(rows, width))


def double(tree: Any) -> Any:
    """Casts the floats of a tree to double precision."""

    def cast(leaf: Any) -> jax.Array:
        leaf = jnp.asarray(leaf)
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf.astype(jnp.float64) if is_float else leaf

    return jax.tree.map(cast, tree)


def plain_case(
    loss: Callable[..., jax.Array],
    params: Any,
    tx: optax.GradientTransformation | None = None,
    data: Callable[[int], tuple[Any, ...]] = lambda i: (vectors(i),),
) -> Case:
    """`(params, opt_state, *data) -> (params, opt_state, loss)`."""
    tx = optax.adam(1e-2) if tx is None else tx

    def plain_step(params: Any, opt_state: Any, *batch: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return Case(
        step=plain_step,
        make=lambda: (params, tx.init(params)),
        data=data,
        new_state=lambda out: out[:2],
    )
