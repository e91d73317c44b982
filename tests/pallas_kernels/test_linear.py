"""Linear codes, one value at a time."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.linear import Bits, from_codes, pack, to_codes, to_scale, unpack


@pytest.mark.parametrize(("bits", "top"), ((8, 127), (4, 7)))
def test_codes_are_the_nearest_whole_numbers_of_scales(bits: Bits, top: int) -> None:
    values = jnp.float32([-2.0, -1.01, 0.0, 0.3, 2.0])
    scale = to_scale(jnp.float32(2.0), bits)
    codes = to_codes(values, scale, bits)
    np.testing.assert_array_equal(codes, np.round(np.asarray(values) / 2 * top))
    assert float(jnp.abs(from_codes(codes, scale) - values).max()) <= float(scale) / 2


def test_a_block_of_nothing() -> None:
    zeros = jnp.zeros(3)
    assert to_codes(zeros, to_scale(jnp.float32(0), 8), 8).tolist() == [0, 0, 0]


def test_two_codes_to_a_byte_and_back() -> None:
    low, high = (x.ravel() for x in jnp.mgrid[-7:8, -7:8])
    packed = pack(low, high)
    assert packed.dtype == jnp.uint8
    assert len(set(packed.tolist())) == 15 * 15
    for got, want in zip(unpack(packed), (low, high), strict=True):
        np.testing.assert_array_equal(got, want)
