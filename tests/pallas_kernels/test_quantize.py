"""Linear blocks of int8 and int4: the round trip within half a step."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import dequantize_blocks, quantize_blocks

quantize = jax.jit(quantize_blocks, static_argnames=("bits", "block"))
dequantize = jax.jit(dequantize_blocks, static_argnames=("length", "bits", "block"))


@pytest.mark.parametrize("bits", (8, 4))
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1,), jnp.float32),
        ((0,), jnp.float32),
        ((256,), jnp.bfloat16),
        ((3, 1000), jnp.float32),
        ((2, 3, 7), jnp.float16),
    ],
)
def test_round_trip(shape: tuple[int, ...], dtype: type, bits: Literal[4, 8]) -> None:
    values = jax.random.normal(jax.random.key(0), shape).astype(dtype)
    length = shape[-1]
    codes, scales = quantize(values, bits=bits)
    assert codes.shape == (*shape[:-1], length if bits == 8 else -(-length // 2))
    assert scales.shape == (*shape[:-1], -(-length // 256))
    back = dequantize(codes, scales, length=length, bits=bits)
    assert back.shape == shape
    assert back.dtype == jnp.float32
    top = 127 if bits == 8 else 7
    for start in range(0, length, 256):
        block = np.asarray(values[..., start : start + 256], np.float64)
        largest = np.abs(block).max(axis=-1, keepdims=True)
        error = np.abs(np.asarray(back[..., start : start + 256]) - block)
        assert (error <= largest / (2 * top) * 1.001).all()


def test_whole_numbers_survive() -> None:
    values = jnp.arange(-7.0, 8.0)
    codes, scales = quantize(values, bits=4)
    back = dequantize(codes, scales, length=15, bits=4)
    np.testing.assert_array_equal(back, values)


def test_zeros_and_what_is_not_finite() -> None:
    values = jnp.zeros((3, 256)).at[1, 7].set(jnp.inf).at[2, 7].set(jnp.nan)
    codes, scales = quantize(values)
    back = dequantize(codes, scales, length=256)
    assert bool((back[0] == 0).all())
    assert not bool(jnp.isfinite(scales[1:]).any())


@pytest.mark.parametrize(("bits", "block"), [(3, 256), (4, 7), (8, 0)])
def test_what_does_not_fit_is_refused(bits: Literal[4, 8], block: int) -> None:
    with pytest.raises(ValueError, match="Remedy"):
        quantize_blocks(jnp.ones(8), bits=bits, block=block)


def test_a_scalar_is_refused() -> None:
    with pytest.raises(ValueError, match="reshape"):
        quantize_blocks(jnp.ones(()))
