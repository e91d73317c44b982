"""One update of one leaf: gradient, moments and parameter in, the new ones out.

Lives here: `LeafFormat`, how a leaf and its moments are stored, `update_values`, the
arithmetic that the reference and every kernel share, and `update_leaf`, the reference
itself in plain JAX. May import: `rules.py`, `blocks.py`, `rounding.py`. Read next:
`fused.py`, which takes many leaves and chooses how they run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.blocks import (
    dequantize_moment,
    quantize_moment,
    spread,
    to_blocks,
)
from pallas_kernels.rounding import element_index, random_bits, round_with_bits
from pallas_kernels.rules import Rule, Scalars, Sign

__all__ = ["LeafFormat", "LeafState", "Updated", "update_leaf", "update_values"]

# What coded moments are cut at. Squares of gradients above 2^64 overflow, and a scale
# of infinity would make NaN. The reciprocal of 2^125 is no subnormal number, which
# compilers that divide by multiplying would flush to zero; and the bound of first
# moments is about its root, so that their quotient is no leap.
_LARGEST: dict[Sign, float] = {"signed": 2.0**63, "unsigned": 2.0**125}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafFormat:
    """How one leaf is stored, and what is written.

    Attributes:
        tile: The block of its 8-bit moments, or None for moments as they are.
        copy_dtype: Also write the new parameters in this dtype, or None.
        is_stochastic: Round bfloat16 parameters by chance.
        leaf: A number that tells this leaf's random bits from others'.
        returns_delta: Return what is to be added to the parameter, instead of the
            new parameter.
        name: What errors call the leaf; its shape is always named.
    """

    tile: tuple[int, ...] | None = None
    copy_dtype: Any = None
    is_stochastic: bool = False
    leaf: int = 0
    returns_delta: bool = False
    name: str = ""


class LeafState(NamedTuple):
    """What one leaf brings to an update.

    Attributes:
        param: The parameter, float32 or 16 bits.
        grad: Its gradient, in any float dtype.
        moments: One array of the parameter's shape per moment: floats, or codes.
        scales: One array per moment if they are codes, else empty.
    """

    param: Any
    grad: Any
    moments: tuple[Any, ...]
    scales: tuple[Any, ...] = ()


class Updated(NamedTuple):
    """What an update makes of one leaf.

    Attributes:
        param: The new parameter; None if `LeafFormat.returns_delta`.
        moments: The new moments.
        scales: Their new scales.
        copy: The new parameter in `LeafFormat.copy_dtype`, or None.
        delta: What is to be added, float32; None unless `LeafFormat.returns_delta`.
    """

    param: Any
    moments: tuple[Any, ...]
    scales: tuple[Any, ...]
    copy: Any
    delta: Any


def update_values(
    rule: Rule,
    state: LeafState,
    scalars: Scalars,
    *,
    block_max: Callable[[Any], Any] | None = None,
    bits: Any = None,
    copy_dtype: Any = None,
) -> Updated:
    """Updates plain values that broadcast against one another.

    Args:
        rule: The optimizer.
        state: Values; scales broadcast against their codes.
        scalars: What is the same for every element.
        block_max: The largest value of each block, shaped like the scales. Needed
            for codes.
        bits: Random bits for the rounding of 16-bit parameters; None rounds to
            nearest.
        copy_dtype: Also return the new parameter in this dtype.

    Returns:
        The new values. With `scalars.skip` every bit is the old one, and delta 0.
    """
    is_coded = bool(state.scales)
    signs = rule.signs
    param = state.param.astype(jnp.float32)
    grad = state.grad.astype(jnp.float32) * scalars.grad_scale
    if is_coded:
        pairs = zip(state.moments, state.scales, signs, strict=True)
        old = tuple(dequantize_moment(c, s, sign) for c, s, sign in pairs)
    else:
        old = tuple(m.astype(jnp.float32) for m in state.moments)
    delta, new = rule.step(param, grad, old, scalars)
    if scalars.skip is not None:
        delta = jnp.where(scalars.skip > 0, jnp.float32(0), delta)

    def keep(before: Any, after: Any) -> Any:
        after = after.astype(before.dtype)
        if scalars.skip is None:
            return after
        return jnp.where(scalars.skip > 0, before, after)

    if is_coded:
        assert block_max is not None
        coded = [
            _encode(v, sign, block_max) for v, sign in zip(new, signs, strict=True)
        ]
        moments = tuple(
            keep(before, codes)
            for before, (codes, _) in zip(state.moments, coded, strict=True)
        )
        scales = tuple(
            keep(before, scale)
            for before, (_, scale) in zip(state.scales, coded, strict=True)
        )
    else:
        moments = tuple(keep(b, a) for b, a in zip(state.moments, new, strict=True))
        scales = ()
    after = param + delta
    rounded = after if bits is None else round_with_bits(after, bits)
    kept = keep(state.param, rounded)
    copy = None
    if copy_dtype is not None:
        copy = kept.astype(jnp.float32).astype(copy_dtype)
    return Updated(kept, moments, scales, copy, delta)


def _encode(
    values: Any, sign: Sign, block_max: Callable[[Any], Any]
) -> tuple[Any, Any]:
    top = jnp.float32(_LARGEST[sign])
    values = jnp.minimum(values, top)
    if sign == "signed":
        values = jnp.maximum(values, -top)
    scale = block_max(jnp.abs(values))
    return quantize_moment(values, scale, sign), scale


def update_leaf(
    rule: Rule,
    form: LeafFormat,
    state: LeafState,
    scalars: Scalars,
    *,
    key: Any = None,
    index: tuple[Any, Any] | None = None,
) -> Updated:
    """Updates one leaf, or the shard of one: the reference, in plain JAX.

    Args:
        rule: The optimizer.
        form: How the leaf is stored.
        state: Its arrays.
        scalars: float32 scalars.
        key: From `rounding.step_key`; needed if the format rounds by chance.
        index: From `rounding.element_index`, if the arrays are a shard.

    Returns:
        The new arrays, of the old shapes and dtypes.
    """
    shape = state.param.shape
    bits = None
    if form.is_stochastic and state.param.dtype == jnp.bfloat16:
        row, place = element_index(shape) if index is None else index
        bits = random_bits(key, row, place)
    if form.tile is None or not state.scales:
        return update_values(
            rule, state, scalars, bits=bits, copy_dtype=form.copy_dtype
        )
    tile = form.tile
    sides = tuple(range(1, 2 * len(shape), 2))

    def block_max(values: Any) -> Any:
        return jnp.max(values, axis=sides, keepdims=True)

    done = update_values(
        rule,
        LeafState(
            to_blocks(state.param, tile),
            to_blocks(state.grad, tile),
            tuple(to_blocks(m, tile) for m in state.moments),
            tuple(spread(s) for s in state.scales),
        ),
        scalars,
        block_max=block_max,
        bits=None if bits is None else to_blocks(bits, tile),
        copy_dtype=form.copy_dtype,
    )
    return Updated(
        param=done.param.reshape(shape),
        moments=tuple(m.reshape(shape) for m in done.moments),
        scales=_like(done.scales, state.scales),
        copy=None if done.copy is None else done.copy.reshape(shape),
        delta=done.delta.reshape(shape),
    )


def _like(new: Sequence[jax.Array], old: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    return tuple(n.reshape(o.shape) for n, o in zip(new, old, strict=True))
