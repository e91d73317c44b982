"""An optimizer as optax knows it, with a second way to apply it in one pass.

Lives here: `FusedTransformation`, its state, and both ways of updating. Optax is not
imported: its transformations are named tuples of two functions, and so is this. May
import: `errors`, `leaves.py`, pallas_kernels. Read next: `algorithms.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jzero.errors import ConfigError, format_problem
from jzero.optim.leaves import Leaf, Mask, Storage, decay_flags, list_leaves
from pallas_kernels import (
    AdamW,
    LeafFormat,
    LeafState,
    Lion,
    Momentum,
    Scalars,
    Updated,
    code_dtype,
    fused_update,
    scales_shape,
)

__all__ = ["Applied", "FusedState", "FusedTransformation", "FusedUpdate"]

AnyRule = AdamW | Lion | Momentum
LearningRate = Any | Callable[[Any], Any]


class FusedState(NamedTuple):
    """The state of a fused optimizer: plain arrays in trees like the parameters'.

    Attributes:
        count: Updates taken, int32; skipped ones are not counted.
        mu: First moments: float32, or int8 codes of the parameter's shape.
        nu: Second moments: float32 or uint8 codes; () where there are none.
        mu_scales: One float32 per block of codes; None for float32 moments.
        nu_scales: The same for `nu`.
        seed: uint32, of stochastic rounding; () without it.
    """

    count: Any
    mu: Any
    nu: Any
    mu_scales: Any
    nu_scales: Any
    seed: Any


class Applied(NamedTuple):
    """What applying an update returns.

    Attributes:
        params: The new parameters.
        state: The new state.
        copies: The parameters in other dtypes, if such were asked for, else None.
    """

    params: Any
    state: FusedState
    copies: Any


class FusedTransformation(NamedTuple):
    """A gradient transformation with an `apply` that needs no second pass.

    Attributes:
        init: `params -> state`.
        update: `(grads, state, params) -> (deltas, state)`, as optax defines it.

    Example:
        >>> from jzero.optim import sgd
        >>> tx, params = sgd(0.5), {"w": jnp.ones(2)}
        >>> new, _, _ = tx.apply({"w": jnp.ones(2)}, tx.init(params), params)
        >>> new["w"].tolist()
        [0.5, 0.5]
    """

    init: Callable[[Any], FusedState]
    update: FusedUpdate

    def apply(
        self,
        grads: Any,
        state: FusedState,
        params: Any,
        *,
        grad_scale: Any = 1.0,
        skip: Any = False,
        copy_dtypes: Any = None,
    ) -> Applied:
        """Returns new parameters instead of deltas: the same numbers, fewer bytes.

        Args:
            grads: Gradients, a tree like `params`, in any float dtypes.
            state: From `init` or the last update.
            params: The parameters.
            grad_scale: What gradients are multiplied by before anything else, such
                as the reciprocal of a loss scale.
            skip: A bool scalar; True leaves every bit of parameters and state.
            copy_dtypes: A tree like `params` of dtypes; the new parameters are also
                returned in these, written in the same pass.

        Raises:
            ConfigError: The parameters do not fit the optimizer's settings.
        """
        return self.update.apply(
            grads,
            state,
            params,
            grad_scale=grad_scale,
            skip=skip,
            copy_dtypes=copy_dtypes,
        )


# Compared by identity, since masks need not be hashable; JAX refers to it weakly.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class FusedUpdate:
    """The function `update` of a fused optimizer, and what it was made with.

    Attributes:
        rule: The arithmetic.
        learning_rate: A number, a scalar array, or a schedule of the count.
        storage: How state is stored.
        mask: Which leaves decay; None for all.
        clip_norm: The largest global norm of gradients, or None.
        seed: Of stochastic rounding.
        backend: Passed to `pallas_kernels.fused_update`.
    """

    rule: AnyRule
    learning_rate: LearningRate
    storage: Storage
    mask: Mask
    clip_norm: float | None
    seed: int
    backend: str

    def init(self, params: Any) -> FusedState:
        """Returns a state of zeros for these parameters."""
        leaves = list_leaves(params, self.storage)
        treedef = jax.tree.structure(params)
        moments: list[Any] = []
        scales: list[Any] = []
        for sign in self.rule.signs:
            values = [
                jnp.zeros(x.shape, code_dtype(sign) if x.tile else jnp.float32)
                for x in leaves
            ]
            moments.append(jax.tree.unflatten(treedef, values))
            blocks = [
                jnp.zeros(scales_shape(x.shape, x.tile), jnp.float32)
                if x.tile
                else None
                for x in leaves
            ]
            scales.append(jax.tree.unflatten(treedef, blocks))
        return self._state(jnp.zeros((), jnp.int32), moments, scales, None)

    def _state(
        self, count: Any, moments: Sequence[Any], scales: Sequence[Any], seed: Any
    ) -> FusedState:
        if seed is None:
            is_stochastic = self.storage.is_stochastic
            seed = jnp.asarray(self.seed, jnp.uint32) if is_stochastic else ()
        has_scales = self.storage.is_coded
        return FusedState(
            count=count,
            mu=moments[0],
            nu=moments[1] if len(moments) > 1 else (),
            mu_scales=scales[0] if has_scales else (),
            nu_scales=scales[1] if has_scales and len(scales) > 1 else (),
            seed=seed,
        )

    def __call__(
        self, updates: Any, state: FusedState, params: Any = None
    ) -> tuple[Any, FusedState]:
        """Returns deltas to be added to the parameters, as optax does.

        For 16-bit parameters they are float32, and adding them in float32 and casting
        back (`optax.apply_updates`) gives what `apply` gives.
        """
        if params is None:
            if self.rule.weight_decay or self.storage.is_stochastic:
                raise ConfigError(
                    format_problem(
                        "Weight decay and stochastic rounding need the parameters.",
                        (),
                        "call update(grads, state, params).",
                    )
                )
            params = updates
        done, new_state = self._run(
            updates, state, params, grad_scale=1.0, skip=False, is_delta=True
        )
        treedef = jax.tree.structure(params)
        deltas = [
            new.param.astype(jnp.float32) - old.astype(jnp.float32)
            if new.delta is None
            else new.delta
            for new, old in zip(done, jax.tree.leaves(params), strict=True)
        ]
        return jax.tree.unflatten(treedef, deltas), new_state

    def apply(
        self,
        grads: Any,
        state: FusedState,
        params: Any,
        *,
        grad_scale: Any = 1.0,
        skip: Any = False,
        copy_dtypes: Any = None,
    ) -> Applied:
        """See `FusedTransformation.apply`."""
        done, new_state = self._run(
            grads,
            state,
            params,
            grad_scale=grad_scale,
            skip=skip,
            is_delta=False,
            copy_dtypes=copy_dtypes,
        )
        treedef = jax.tree.structure(params)
        copies = None
        if copy_dtypes is not None:
            copies = jax.tree.unflatten(treedef, [new.copy for new in done])
        new_params = jax.tree.unflatten(treedef, [new.param for new in done])
        return Applied(new_params, new_state, copies)

    def _run(
        self,
        grads: Any,
        state: FusedState,
        params: Any,
        *,
        grad_scale: Any,
        skip: Any,
        is_delta: bool,
        copy_dtypes: Any = None,
    ) -> tuple[list[Updated], FusedState]:
        leaves = list_leaves(params, self.storage)
        treedef = jax.tree.structure(params)
        flat = treedef.flatten_up_to
        count = state.count
        skip = jnp.asarray(skip, jnp.bool_)
        next_count = jnp.where(count < jnp.iinfo(jnp.int32).max, count + 1, count)
        grad_leaves = flat(grads)
        scalars = Scalars(
            grad_scale=self._grad_scale(grad_leaves, grad_scale),
            learning_rate=self.learning_rate(count)
            if callable(self.learning_rate)
            else self.learning_rate,
            bias1=1 - getattr(self.rule, "b1", 0.0) ** next_count,
            bias2=1 - getattr(self.rule, "b2", 0.0) ** next_count,
            skip=skip,
        )
        trees = [state.mu, state.nu][: len(self.rule.signs)]
        moments = zip(*(flat(tree) for tree in trees), strict=True)
        scales = self._scales(state, flat, len(leaves))
        copies = [None] * len(leaves) if copy_dtypes is None else flat(copy_dtypes)
        values = zip(jax.tree.leaves(params), grad_leaves, moments, scales, strict=True)
        done = fused_update(
            self._rules(params),
            [
                self._form(number, leaf, copy, is_delta)
                for number, (leaf, copy) in enumerate(zip(leaves, copies, strict=True))
            ],
            [LeafState(p, g, m, s) for p, g, m, s in values],
            scalars,
            seed=state.seed if self.storage.is_stochastic else 0,
            step=count,
            backend=self.backend,
        )
        new_moments = [
            jax.tree.unflatten(treedef, [new.moments[i] for new in done])
            for i in range(len(trees))
        ]
        new_scales = [
            jax.tree.unflatten(
                treedef, [new.scales[i] if new.scales else None for new in done]
            )
            for i in range(len(trees))
        ]
        new_count = jnp.where(skip, count, next_count)
        return done, self._state(new_count, new_moments, new_scales, state.seed)

    def _form(self, number: int, leaf: Leaf, copy: Any, is_delta: bool) -> LeafFormat:
        is_chance = self.storage.is_stochastic and leaf.dtype == jnp.bfloat16
        return LeafFormat(
            tile=leaf.tile,
            copy_dtype=copy,
            is_stochastic=is_chance,
            leaf=number,
            # What was rounded by chance is not the old value plus the delta.
            returns_delta=is_delta and not is_chance,
            name=leaf.path,
        )

    def _rules(self, params: Any) -> list[AnyRule]:
        plain = replace(self.rule, weight_decay=0.0)
        flags = decay_flags(self.mask, params)
        return [self.rule if flag else plain for flag in flags]

    def _scales(
        self, state: FusedState, flat: Callable[[Any], list[Any]], num_leaves: int
    ) -> list[tuple[Any, ...]]:
        """Returns the scales of each leaf, () for moments in float32."""
        if not self.storage.is_coded:
            return [()] * num_leaves
        trees = [state.mu_scales, state.nu_scales][: len(self.rule.signs)]
        rows = zip(*(flat(tree) for tree in trees), strict=True)
        return [() if row[0] is None else row for row in rows]

    def _grad_scale(self, grads: Sequence[Any], grad_scale: Any) -> Any:
        """Multiplies in the factor that keeps the global norm below its limit."""
        if self.clip_norm is None:
            return grad_scale
        # Scaled before it is squared: the squares of gradients that a loss scale
        # has blown up overflow.
        norm = jnp.sqrt(
            sum(jnp.sum(jnp.square(g.astype(jnp.float32) * grad_scale)) for g in grads)
        )
        factor = jnp.where(norm < self.clip_norm, 1.0, self.clip_norm / norm)
        return grad_scale * factor


def build(update: FusedUpdate) -> FusedTransformation:
    """Returns the transformation of an update function."""
    return FusedTransformation(init=update.init, update=update)
