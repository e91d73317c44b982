"""The update of many leaves at once, by the backend that suits each.

Lives here: `fused_update`, the public function. May import: everything else in this
package. Read next: `mosaic_gpu.py`, the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from pallas_kernels.blocks import scales_shape
from pallas_kernels.rounding import element_index, step_key
from pallas_kernels.rules import Rule, Scalars
from pallas_kernels.shardwise import Dim, Dims, Place, shardwise
from pallas_kernels.update import LeafFormat, LeafState, Updated, update_leaf

__all__ = ["check_backend", "fused_update"]

Backend = Literal["auto", "xla"]


def check_backend(backend: str) -> None:
    """Raises `ValueError` unless there is such a backend."""
    if backend not in get_args(Backend):
        known = ", ".join(map(repr, get_args(Backend)))
        raise ValueError(f"There is no backend {backend!r}.\nRemedy: pass {known}.")


def fused_update(
    rules: Sequence[Rule],
    forms: Sequence[LeafFormat],
    states: Sequence[LeafState],
    scalars: Scalars,
    *,
    seed: Any = 0,
    step: Any = 0,
    backend: str = "auto",
) -> list[Updated]:
    """Updates leaves in as few passes over memory as the backend can.

    Args:
        rules: The optimizer of each leaf, with its hyperparameters.
        forms: How each leaf is stored.
        states: The arrays of each leaf.
        scalars: What is the same for every element of every leaf.
        seed: Of the random bits for stochastic rounding.
        step: A number that differs from step to step.
        backend: "xla" is the reference. "auto" is the fastest that was measured.

    Returns:
        One record per leaf, in order.

    Raises:
        ValueError: There is no such backend.

    Example:
        >>> from pallas_kernels.rules import Momentum
        >>> state = LeafState(jnp.ones(3), jnp.ones(3), (jnp.zeros(3),))
        >>> fused_update(
        ...     [Momentum()], [LeafFormat()], [state], Scalars(1.0, 0.5, 1, 1, 0)
        ... )[0].param
        Array([0.5, 0.5, 0.5], dtype=float32)
    """
    check_backend(backend)
    scalars = Scalars(*(jnp.asarray(s, jnp.float32) for s in scalars))
    done = []
    for rule, form, state in zip(rules, forms, states, strict=True):
        key = step_key(seed, step, form.leaf) if form.is_stochastic else jnp.uint32(0)
        if state.scales:
            new = _update_sharded(rule, form, state, scalars, key)
        else:
            new = update_leaf(rule, form, state, scalars, key=key)
        done.append(_only(new, form))
    return done


def _only(done: Updated, form: LeafFormat) -> Updated:
    if form.returns_delta:
        return done._replace(param=None, copy=None)
    return done._replace(delta=None)


def leaf_dims(state: LeafState, tag: str) -> tuple[Dims, Dims]:
    """Names the dims of a leaf and of its scales, for `shardwise`."""
    shape = state.param.shape
    parts = state.scales[0].shape if state.scales else shape
    dims = tuple(Dim(f"{tag}d{i}", n) for i, n in enumerate(parts))
    return dims, dims


def _update_sharded(
    rule: Rule,
    form: LeafFormat,
    state: LeafState,
    scalars: Scalars,
    key: jax.Array,
) -> Updated:
    """Updates a leaf of 8-bit moments, block by block, on whatever shards it has."""
    assert form.tile is not None
    assert state.scales[0].shape == scales_shape(state.param.shape, form.tile)
    dims, _ = leaf_dims(state, "leaf")
    num_moments = len(state.moments)
    is_params = not form.returns_delta
    has_copy = is_params and form.copy_dtype is not None

    def local(place: Place, *arrays: jax.Array) -> list[jax.Array]:
        packed, bits_key, param, grad, *rest = arrays
        shard = LeafState(
            param, grad, tuple(rest[:num_moments]), tuple(rest[num_moments:])
        )
        index = element_index(
            param.shape,
            global_shape=place.whole_shape(dims, param.shape),
            starts=place.starts(dims, param.shape),
        )
        new = update_leaf(
            rule,
            form,
            shard,
            Scalars(*(packed[i] for i in range(len(Scalars._fields)))),
            key=bits_key[0],
            index=index,
        )
        firsts = [new.param if is_params else new.delta]
        if has_copy:
            firsts.append(new.copy)
        return [*firsts, *new.moments, *new.scales]

    arrays = [
        jnp.stack(scalars),
        key.reshape(1),
        state.param,
        state.grad,
        *state.moments,
        *state.scales,
    ]
    fixed = (Dim("packed", 1),), (Dim("key", 1),)
    out = shardwise(
        local,
        arrays,
        operands=[*fixed, *[dims] * (2 + 2 * num_moments)],
        results=[dims] * (1 + has_copy + 2 * num_moments),
    )
    first, *rest = out
    copy = rest.pop(0) if has_copy else None
    return Updated(
        param=first if is_params else None,
        moments=tuple(rest[:num_moments]),
        scales=tuple(rest[num_moments:]),
        copy=copy,
        delta=None if is_params else first,
    )
