"""Applying a fused optimizer to a `flax.nnx` model in place.

Lives here: the counterpart of `TrainState.apply_gradients` for `nnx.Optimizer`, whose
own `update` adds deltas. Flax is not imported: who has nnx objects has imported it.
May import: `errors`, `masters.py`, `transform.py`. Read next: `transform.py`.
"""

from __future__ import annotations

import sys
from typing import Any

import jax.numpy as jnp

from jzero.errors import ConfigError
from jzero.optim.masters import MasterTransformation
from jzero.optim.transform import FusedTransformation

__all__ = ["apply_to_nnx"]


def apply_to_nnx(
    optimizer: Any, model: Any, grads: Any, *, grad_scale: Any = 1.0, skip: Any = False
) -> None:
    """Updates a model and its optimizer, both of `flax.nnx`, in one pass.

    Args:
        optimizer: An `nnx.Optimizer` made with an optimizer of `jzero.optim`.
        model: The model.
        grads: From `nnx.grad`.
        grad_scale: What gradients are multiplied by before anything else.
        skip: A bool scalar; True leaves every bit of both.

    Raises:
        ConfigError: The optimizer inside has no `apply`.
    """
    if not isinstance(optimizer.tx, FusedTransformation | MasterTransformation):
        raise ConfigError(
            f"apply_to_nnx: {type(optimizer.tx).__name__} has no apply.\n"
            "Remedy: use one of jzero.optim, or call optimizer.update(model, grads)."
        )
    nnx: Any = sys.modules["flax.nnx"]
    params = nnx.as_pure(nnx.state(model, optimizer.wrt))
    new_params, new_state = optimizer.tx.apply(
        nnx.as_pure(nnx.state(grads, optimizer.wrt)),
        nnx.as_pure(optimizer.opt_state),
        params,
        grad_scale=grad_scale,
        skip=skip,
    )[:2]
    nnx.update(model, new_params)
    nnx.update(optimizer.opt_state, nnx.state(new_state))
    one = 1 - jnp.asarray(skip).astype(optimizer.step[...].dtype)
    optimizer.step[...] += one
