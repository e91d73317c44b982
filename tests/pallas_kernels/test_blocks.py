"""Blocks that no shard boundary cuts, and their scales."""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels import choose_tile, scales_shape
from pallas_kernels.blocks import (
    dequantize_moment,
    quantize_moment,
    spread,
    to_blocks,
)
from pallas_kernels.rules import Sign


@given(st.lists(st.integers(0, 3000), max_size=4))
def test_a_tile_divides_its_array(shape: list[int]) -> None:
    tile = choose_tile(shape)
    if tile is None:
        return
    assert 96 <= prod(tile) <= 256
    assert all(n % t == 0 for n, t in zip(shape, tile, strict=True))
    num_blocks = prod(scales_shape(shape, tile))
    # Codes of two moments and their scales: at most 2.1 bytes for each element.
    assert 2 + 8 * num_blocks / prod(shape) <= 2.1


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((1024, 4096), (1, 256)),
        ((12, 1024, 4096), (1, 1, 256)),
        ((1024, 16, 64), (1, 4, 64)),
        ((768, 50257), (8, 29)),
        ((4099, 1024), (1, 256)),
        ((4096,), (256,)),
        ((3, 5), None),
        ((0, 256), None),
        ((), None),
        ((65537,), None),  # a prime
    ],
)
def test_tiles_of_common_shapes(
    shape: tuple[int, ...], tile: tuple[int, ...] | None
) -> None:
    assert choose_tile(shape) == tile


@pytest.mark.parametrize("sign", ("signed", "unsigned"))
def test_the_error_of_a_block_is_bounded_by_its_largest_value(sign: Sign) -> None:
    values = jax.random.normal(jax.random.key(0), (64, 512)) ** 3
    values = jnp.abs(values) if sign == "unsigned" else values

    @jax.jit
    def errors(values: jax.Array) -> jax.Array:
        blocks = to_blocks(values, (1, 256))
        scales = jnp.abs(blocks).max((1, 3), keepdims=True)
        back = dequantize_moment(quantize_moment(blocks, scales, sign), scales, sign)
        return jnp.abs(back - blocks) / scales

    # Half of the widest gap: the one below 1 for signed codes, 0.9 / 64.
    gap = 0.9 / 64 if sign == "signed" else 0.9 / 128
    assert float(errors(values).max()) <= gap / 2 + 1e-6


def test_scales_line_up_with_blocks() -> None:
    values = jnp.arange(4 * 6.0).reshape(4, 6)
    scales = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    product = (to_blocks(values, (2, 3)) * spread(scales)).reshape(4, 6)
    np.testing.assert_array_equal(product[0], values[0] * np.repeat([1, 2], 3))
    np.testing.assert_array_equal(product[3], values[3] * np.repeat([3, 4], 3))


@pytest.mark.parametrize("sign", ("signed", "unsigned"))
def test_blocks_of_nothing_become_nothing(sign: Sign) -> None:
    quantize = jax.jit(quantize_moment, static_argnums=2)
    for largest in (0.0, 1e-40, 1e-37):
        codes = quantize(jnp.full(4, largest), jnp.full(4, largest), sign)
        assert codes.tolist() == [0] * 4


def test_second_moments_beside_huge_ones_do_not_become_zero() -> None:
    """Their quotient is below what float32 can hold."""
    values = jnp.float32([2.0**125, 1e-3, 0.0])
    quantize = jax.jit(quantize_moment, static_argnums=2)
    codes = quantize(values, jnp.full(3, values[0]), "unsigned")
    assert codes.tolist() == [255, 1, 0]
