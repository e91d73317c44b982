"""A loss scale that follows what float16 can hold.

Lives here: `DynamicLossScale`, a small pytree that travels in the training state. May
import: `errors`. Read next: `jzero/train_state.py`, which uses it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jzero.errors import LossScaleError, format_problem

__all__ = ["DynamicLossScale", "all_finite"]


def all_finite(tree: Any) -> jax.Array:
    """Says whether every float in a tree is finite: one scalar, equal everywhere.

    Example:
        >>> bool(all_finite({"w": jnp.array([1.0, jnp.inf])}))
        False
    """
    leaves = [
        jnp.isfinite(leaf).all()
        for leaf in jax.tree.leaves(tree)
        if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
    ]
    return jnp.stack(leaves).all() if leaves else jnp.asarray(True)


@jax.tree_util.register_pytree_with_keys_class
class DynamicLossScale:
    """Multiplies the loss so that small gradients survive float16.

    An overflow halves the scale and the step is to be skipped; `growth_interval`
    steps without one double it. A pytree of three scalars: keep it in the state.

    Args:
        scale: The first scale.
        growth_interval: Steps without an overflow after which the scale grows.
        factor: By which it grows and falls.
        min_scale: Below which it does not fall. An overflow there is recorded, and
            `check` raises.

    Attributes:
        scale: float32.
        num_good_steps: Steps since the last overflow or growth, int32.
        is_stuck: Whether the last step overflowed at `min_scale`.

    Source: Micikevicius et al., arXiv 1710.03740, section 3.2.

    Example:
        >>> scaler = DynamicLossScale(2.0**15)
        >>> float(scaler.adjust(jnp.asarray(False)).scale)
        16384.0
    """

    def __init__(
        self,
        scale: float = 2.0**15,
        *,
        growth_interval: int = 2000,
        factor: float = 2.0,
        min_scale: float = 1.0,
    ) -> None:
        if not (scale >= min_scale > 0 and factor > 1 and growth_interval > 0):
            raise ValueError(
                f"DynamicLossScale({scale}, growth_interval={growth_interval}, "
                f"factor={factor}, min_scale={min_scale}) is not valid.\n"
                "Remedy: scale >= min_scale > 0, factor > 1, growth_interval > 0."
            )
        self.growth_interval = growth_interval
        self.factor = factor
        self.min_scale = min_scale
        self.scale: Any = jnp.asarray(scale, jnp.float32)
        self.num_good_steps: Any = jnp.zeros((), jnp.int32)
        self.is_stuck: Any = jnp.zeros((), jnp.bool_)

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """For JAX."""
        names = ("scale", "num_good_steps", "is_stuck")
        keyed = [(jax.tree_util.GetAttrKey(n), getattr(self, n)) for n in names]
        return keyed, (self.growth_interval, self.factor, self.min_scale)

    @classmethod
    def tree_unflatten(cls, fixed: Any, leaves: Any) -> DynamicLossScale:
        """For JAX."""
        new = object.__new__(cls)
        new.growth_interval, new.factor, new.min_scale = fixed
        new.scale, new.num_good_steps, new.is_stuck = leaves
        return new

    def __repr__(self) -> str:
        return f"DynamicLossScale(scale={self.scale})"

    def scale_loss(self, loss: Any) -> Any:
        """Multiplies a loss, in its own dtype."""
        return loss * self.scale.astype(jnp.result_type(loss))

    def unscale(self, grads: Any) -> Any:
        """Divides gradients, in float32; do so before they are clipped."""
        return jax.tree.map(lambda g: g.astype(jnp.float32) / self.scale, grads)

    def adjust(self, is_finite: jax.Array) -> DynamicLossScale:
        """Returns the scale for the next step.

        Args:
            is_finite: Whether this step's gradients were, from `all_finite`.
        """
        num_good = self.num_good_steps + 1
        is_due = num_good >= self.growth_interval
        grown = jnp.where(is_due, self.scale * self.factor, self.scale)
        # An infinite scale would never come down.
        grown = jnp.where(jnp.isfinite(grown), grown, self.scale)
        fallen = jnp.maximum(self.scale / self.factor, self.min_scale)
        leaves = (
            jnp.where(is_finite, grown, fallen),
            jnp.where(is_finite & ~is_due, num_good, 0),
            ~is_finite & (self.scale <= self.min_scale),
        )
        fixed = (self.growth_interval, self.factor, self.min_scale)
        return self.tree_unflatten(fixed, leaves)

    def check(self) -> None:
        """Raises if the last step overflowed although the scale cannot fall.

        Reads one scalar of the device: call it where metrics are read.

        Raises:
            LossScaleError: It did.
        """
        if bool(self.is_stuck):
            raise LossScaleError(
                format_problem(
                    "Gradients are not finite at the smallest loss scale, "
                    f"{float(self.min_scale):g}: the step was skipped, and so will be "
                    "all that follow.",
                    (),
                    "the loss itself overflows or is NaN: look at the data and the "
                    "learning rate, or compute in bfloat16.",
                )
            )
