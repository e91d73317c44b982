"""Stochastic rounding to bfloat16 with bits that depend on nothing but counters.

Lives here: random bits as a function of a seed, the step, the leaf and the index of
the element in the whole array, and rounding with them. How the array is sharded does
not matter, and nothing is stored. May import: jax alone. Read next: `update.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["element_index", "random_bits", "round_with_bits", "stochastic_round"]

_GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio, odd


def _mix(bits: Any) -> Any:
    """The finalizer of MurmurHash3 (Appleby, public domain): a bijection of uint32."""
    bits = bits ^ (bits >> jnp.uint32(16))
    bits = bits * jnp.uint32(0x85EBCA6B)
    bits = bits ^ (bits >> jnp.uint32(13))
    bits = bits * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> jnp.uint32(16))


def step_key(seed: Any, step: Any, leaf: int) -> Any:
    """Returns the uint32 that one leaf uses in one step."""
    key = _mix(jnp.asarray(seed).astype(jnp.uint32) + jnp.uint32(_GOLDEN))
    key = _mix(key ^ _mix(jnp.asarray(step).astype(jnp.uint32)))
    return _mix(key ^ jnp.uint32(((leaf + 1) * _GOLDEN) % 2**32))


def random_bits(key: Any, row: Any, index: Any) -> Any:
    """Returns 32 random bits per element.

    Args:
        key: From `step_key`.
        row: The element's index along dim 0, uint32; 0 for arrays of less than 2^32
            elements.
        index: Its row-major index in the whole array modulo 2^32, uint32. The pair is
            unique for arrays of any size.
    """
    return _mix(_mix(index ^ key) + row * jnp.uint32(_GOLDEN) + key)


def element_index(
    shape: Sequence[int],
    *,
    global_shape: Sequence[int] | None = None,
    starts: Sequence[Any] | None = None,
) -> tuple[Any, Any]:
    """Returns row and row-major index of every element, as `random_bits` wants them.

    Args:
        shape: The shape of an array, or of a shard of it.
        global_shape: The whole array's shape, if `shape` is a shard's.
        starts: Per dim, the index in the whole array where the shard starts.

    Returns:
        Two uint32 arrays of `shape`.
    """
    whole = tuple(shape if global_shape is None else global_shape)
    index = row = jnp.zeros(tuple(shape), jnp.uint32)
    stride = 1
    for dim in reversed(range(len(shape))):
        along = jax.lax.broadcasted_iota(jnp.uint32, tuple(shape), dim)
        if starts is not None:
            along = along + jnp.asarray(starts[dim]).astype(jnp.uint32)
        index = index + along * jnp.uint32(stride % 2**32)
        stride *= whole[dim]
        if dim == 0 and stride >= 2**32:  # now the size of the whole array
            row = along
    return row, index


def round_with_bits(values: Any, bits: Any) -> Any:
    """Rounds float32 to bfloat16, up with the probability of the dropped part.

    Infinities and NaN stay what they are; a finite value never becomes infinite,
    except where rounding to nearest would do so as well.

    Args:
        values: float32.
        bits: uint32; the lower 16 are used.
    """
    word = jax.lax.bitcast_convert_type(values, jnp.uint32)
    moved = word + (bits & jnp.uint32(0xFFFF))
    moved = jax.lax.bitcast_convert_type(moved & jnp.uint32(0xFFFF0000), jnp.float32)
    largest = jnp.float32(3.3895313892515355e38)  # of bfloat16
    return jnp.where(jnp.abs(values) < largest, moved, values).astype(jnp.bfloat16)


def stochastic_round(
    values: jax.Array, *, seed: Any, step: Any = 0, leaf: int = 0
) -> jax.Array:
    """Rounds an array to bfloat16 so that the mean over many steps is unbiased.

    Args:
        values: float32, any shape, sharded or not.
        seed: A whole number.
        step: A whole number that differs from call to call.
        leaf: Which of several arrays this is.

    Returns:
        bfloat16, the same bits for the same seed, step and leaf.

    Source: Gupta et al., arXiv 1502.02551; Croci et al., arXiv 2104.15076.

    Example:
        >>> halfway = jnp.full(4096, 1 + 2**-8)
        >>> rounded = stochastic_round(halfway, seed=0).astype(jnp.float32)
        >>> sorted(set(rounded.tolist())), bool(abs(rounded.mean() - 1 - 2**-8) < 1e-3)
        ([1.0, 1.0078125], True)
    """
    row, index = element_index(values.shape)
    bits = random_bits(step_key(seed, step, leaf), row, index)
    return round_with_bits(values.astype(jnp.float32), bits)
