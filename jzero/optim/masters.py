"""Float32 masters of 16-bit parameters, kept as optimizer state.

Lives here: `with_master_weights`. In the ZeRO paper the masters are optimizer state,
and only 16-bit parameters are anybody's parameters; so they are sharded with the
moments from stage 1 on. May import: `transform.py`. Read next: `transform.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jzero.optim.transform import FusedTransformation

__all__ = ["MasterState", "MasterTransformation", "with_master_weights"]


class MasterState(NamedTuple):
    """The state of an optimizer on masters.

    Attributes:
        inner: The state of the optimizer inside, made for the masters.
        masters: The parameters in float32.
    """

    inner: Any
    masters: Any


class MasterTransformation(NamedTuple):
    """A gradient transformation on float32 masters, with an `apply`.

    Attributes:
        init: `params -> state`.
        update: `(grads, state, params) -> (deltas, state)`, as optax defines it.
    """

    init: Callable[[Any], MasterState]
    update: MasterUpdate

    def apply(
        self,
        grads: Any,
        state: MasterState,
        params: Any,
        *,
        grad_scale: Any = 1.0,
        skip: Any = False,
    ) -> tuple[Any, MasterState]:
        """Returns new 16-bit parameters and the new state.

        Args:
            grads: Gradients, a tree like `params`.
            state: From `init` or the last update.
            params: The parameters.
            grad_scale: What gradients are multiplied by before anything else.
            skip: A bool scalar; True leaves every bit of parameters and state.
        """
        return self.update.apply(grads, state, params, grad_scale=grad_scale, skip=skip)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class MasterUpdate:
    """The function `update` of an optimizer on masters.

    Attributes:
        inner: The optimizer on float32.
    """

    inner: Any

    def init(self, params: Any) -> MasterState:
        """Returns the state, with a float32 copy of the parameters."""
        # `copy`: a float32 parameter must not share its buffer with its master.
        masters = jax.tree.map(
            lambda p: jnp.array(p, dtype=jnp.float32, copy=True), params
        )
        return MasterState(inner=self.inner.init(masters), masters=masters)

    def __call__(
        self, updates: Any, state: MasterState, params: Any
    ) -> tuple[Any, MasterState]:
        """Returns float32 deltas that take the parameters to their rounded masters."""
        new, new_state = self.apply(updates, state, params, grad_scale=1.0, skip=False)
        deltas = jax.tree.map(
            lambda n, p: n.astype(jnp.float32) - p.astype(jnp.float32), new, params
        )
        return deltas, new_state

    def apply(
        self,
        grads: Any,
        state: MasterState,
        params: Any,
        *,
        grad_scale: Any,
        skip: Any,
    ) -> tuple[Any, MasterState]:
        """See `MasterTransformation.apply`."""
        dtypes = jax.tree.map(lambda p: p.dtype, params)
        if isinstance(self.inner, FusedTransformation):
            masters, inner, copies = self.inner.apply(
                grads,
                state.inner,
                state.masters,
                grad_scale=grad_scale,
                skip=skip,
                copy_dtypes=dtypes,
            )
            return copies, MasterState(inner=inner, masters=masters)
        wide = jax.tree.map(lambda g: g.astype(jnp.float32) * grad_scale, grads)
        deltas, inner = self.inner.update(wide, state.inner, state.masters)
        masters = jax.tree.map(jnp.add, state.masters, deltas)
        new = MasterState(inner=inner, masters=masters)
        kept = jax.tree.map(lambda b, a: jnp.where(skip, b, a), state, new)
        copies = jax.tree.map(lambda m, d: m.astype(d), kept.masters, dtypes)
        return copies, kept


def with_master_weights(inner: Any) -> MasterTransformation:
    """Trains 16-bit parameters through float32 masters.

    Gradients are cast to float32, the optimizer inside sees float32 alone, and the
    parameters are the masters, rounded. Updates below the resolution of 16 bits add
    up instead of vanishing.

    Args:
        inner: Any optax gradient transformation. With one of `jzero.optim` the 16-bit
            parameters are written in the same pass as the masters.

    Returns:
        An optax gradient transformation with an `apply` besides.

    Source: Micikevicius et al., Mixed Precision Training, arXiv 1710.03740.

    Example:
        >>> from jzero.optim import sgd
        >>> tx = with_master_weights(sgd(1e-3, momentum=0.0))
        >>> params = {"w": jnp.ones(1, jnp.bfloat16)}
        >>> state = tx.init(params)
        >>> for _ in range(3):
        ...     params, state = tx.apply({"w": jnp.ones(1)}, state, params)
        >>> float(params["w"][0]), round(float(state.masters["w"][0]), 6)
        (0.99609375, 0.997)
    """
    update = MasterUpdate(inner)
    return MasterTransformation(init=update.init, update=update)
