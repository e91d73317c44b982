"""Dynamic 8-bit codes against their published definition."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import code_dtype, code_table, decode, encode
from pallas_kernels.rules import Sign

SIGNS: tuple[Sign, Sign] = ("signed", "unsigned")
to_values = jax.jit(decode, static_argnums=1)
to_codes = jax.jit(encode, static_argnums=1, static_argnames="has_zero")


def published(sign: Sign) -> np.ndarray:
    """The table as the paper describes it: linear parts of seven decades.

    Of the bits behind the sign, zeros count the decade, a one ends the count, and what
    is left is a linear fraction; without a sign there is one bit more to divide by.
    """
    values = [0.0, 1.0]
    for num_zeros in range(7):
        num_fraction_bits = 6 - num_zeros + (sign == "unsigned")
        edges = np.linspace(0.1, 1, 2**num_fraction_bits + 1)
        middles = (edges[1:] + edges[:-1]) / 2 * 10.0**-num_zeros
        values += [*middles, *([] if sign == "unsigned" else -middles)]
    return np.sort(values)


@pytest.mark.parametrize("sign", SIGNS)
def test_tables_are_the_published_ones(sign: Sign) -> None:
    assert len(set(code_table(sign))) == 256
    np.testing.assert_allclose(code_table(sign), published(sign), rtol=1e-12)


@pytest.mark.parametrize("sign", SIGNS)
def test_every_code_is_a_value_of_the_table_and_comes_back(sign: Sign) -> None:
    info = jnp.iinfo(code_dtype(sign))
    codes = jnp.arange(info.min, info.max + 1).astype(code_dtype(sign))
    values = np.asarray(to_values(codes, sign))
    np.testing.assert_allclose(np.sort(values), code_table(sign), rtol=3e-7, atol=0)
    np.testing.assert_array_equal(to_codes(jnp.asarray(values), sign), codes)


@pytest.mark.parametrize("sign", SIGNS)
def test_a_value_becomes_the_nearest_code(sign: Sign) -> None:
    rng = np.random.default_rng(0)
    # Evenly over the decades, and below the smallest code.
    sizes = np.concatenate([10 ** rng.uniform(-9, 0, 20_000), rng.uniform(0, 1, 5_000)])
    values = sizes if sign == "unsigned" else sizes * rng.choice([-1, 1], sizes.size)
    values = values.astype(np.float32)
    table = np.array(code_table(sign))
    best = np.abs(values[:, None] - table[None, :]).min(axis=1)
    got = to_values(to_codes(jnp.asarray(values), sign), sign)
    # Of two codes at equal distance either will do.
    excess = np.abs(np.asarray(got, np.float64) - values) - best
    assert excess.max() < 1e-7


def test_second_moments_do_not_become_zero() -> None:
    values = jnp.float32([0.0, 1e-30, 1e-8, 1.0])
    codes = to_codes(values, "unsigned", has_zero=False)
    assert codes.tolist() == [0, 1, 1, 255]
    assert to_codes(values, "unsigned").tolist() == [0, 0, 0, 255]
