"""`TrainState`: parameters and optimizer state, updated in one pass where possible.

Lives here: the record and its `apply_gradients`. Any other pytree serves as well; this
one is for optimizers that have an `apply`. May import: `optim`, `precision`. Read
next: `jzero/optim/transform.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from jzero.optim.masters import MasterTransformation
from jzero.optim.transform import FusedTransformation
from jzero.precision.loss_scale import DynamicLossScale, all_finite

__all__ = ["TrainState"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """What a training step takes and returns.

    Attributes:
        step: Updates taken, int32; skipped ones are not counted.
        params: The parameters.
        opt_state: The optimizer's state.
        loss_scale: A `DynamicLossScale`, or None.
        apply_fn: The model, for the step's use. Not part of the tree.
        tx: The optimizer. Not part of the tree.

    Example:
        >>> import jzero
        >>> state = TrainState.create(
        ...     apply_fn=None, params={"w": jnp.ones(2)}, tx=jzero.optim.sgd(0.5)
        ... )
        >>> state.apply_gradients(grads={"w": jnp.ones(2)}).params["w"].tolist()
        [0.5, 0.5]
    """

    step: Any
    params: Any
    opt_state: Any
    loss_scale: DynamicLossScale | None = None
    apply_fn: Callable[..., Any] | None = field(default=None, metadata={"static": True})
    tx: Any = field(metadata={"static": True})

    @classmethod
    def create(
        cls,
        *,
        apply_fn: Callable[..., Any] | None,
        params: Any,
        tx: Any,
        loss_scale: DynamicLossScale | None = None,
    ) -> TrainState:
        """Makes the first state.

        Args:
            apply_fn: The model, or None.
            params: The parameters.
            tx: Any optax gradient transformation.
            loss_scale: For float16; None for none.
        """
        return cls(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=tx.init(params),
            loss_scale=loss_scale,
            apply_fn=apply_fn,
            tx=tx,
        )

    def replace(self, **changes: Any) -> TrainState:
        """Returns the state with other values in some fields."""
        return replace(self, **changes)

    def scale_loss(self, loss: Any) -> Any:
        """Multiplies a loss by the loss scale, if there is one."""
        return loss if self.loss_scale is None else self.loss_scale.scale_loss(loss)

    def apply_gradients(self, *, grads: Any) -> TrainState:
        """Returns the next state.

        With a loss scale, `grads` are those of the scaled loss: they are unscaled
        first, and if one is not finite, parameters, optimizer state and step keep
        every bit and the scale falls. Optimizers of `jzero.optim` unscale, clip,
        update and write in one pass; others do what optax does.

        Args:
            grads: Gradients, a tree like `params`.
        """
        grad_scale: Any = 1.0
        skip: Any = False
        loss_scale = self.loss_scale
        if loss_scale is not None:
            is_finite = all_finite(grads)
            grad_scale, skip = 1 / loss_scale.scale, ~is_finite
            loss_scale = loss_scale.adjust(is_finite)
        old = self.params, self.opt_state
        if isinstance(self.tx, FusedTransformation | MasterTransformation):
            params, opt_state = self.tx.apply(
                grads, self.opt_state, self.params, grad_scale=grad_scale, skip=skip
            )[:2]
        else:
            if self.loss_scale is not None:
                grads = self.loss_scale.unscale(grads)
            deltas, opt_state = self.tx.update(grads, self.opt_state, self.params)
            params = jax.tree.map(
                lambda p, d: (p + d).astype(p.dtype), self.params, deltas
            )
            if self.loss_scale is not None:
                params, opt_state = jax.tree.map(
                    lambda b, a: jnp.where(skip, b, a), old, (params, opt_state)
                )
        return self.replace(
            step=self.step + 1 - jnp.asarray(skip).astype(jnp.int32),
            params=params,
            opt_state=opt_state,
            loss_scale=loss_scale,
        )
