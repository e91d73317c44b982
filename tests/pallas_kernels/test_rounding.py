"""Stochastic rounding: unbiased, and the same however an array is sharded."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from pallas_kernels import stochastic_round
from pallas_kernels.rounding import (
    element_index,
    random_bits,
    round_with_bits,
    step_key,
)
from tests.end_to_end.oracle import mesh_of

DRAWS = 10**6
draw = jax.jit(stochastic_round, static_argnames="leaf")


@jax.jit
def bits_for(seed: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of two leaves."""
    row, index = element_index((DRAWS,))
    one, two = (random_bits(step_key(seed, step, leaf), row, index) for leaf in (0, 1))
    return one, two


@pytest.mark.parametrize(
    ("fraction", "sign"), [(0.5, 1.0), (0.1, -1.0), (0.99, 1.0), (2**-16, -1.0)]
)
def test_the_mean_of_a_million_draws_is_unbiased(fraction: float, sign: float) -> None:
    gap = 2.0**-7  # between neighbours of 1 in bfloat16
    value = np.float32(sign * (1 + fraction * gap))
    exact = abs(float(value)) - 1
    draws = draw(jnp.full(DRAWS, value), seed=7, step=3)
    ups = float(jnp.mean(jnp.abs(draws.astype(jnp.float32)) > 1))
    chance = exact / gap
    sigma = (chance * (1 - chance) / DRAWS) ** 0.5
    assert abs(ups - chance) < 3 * sigma
    assert set(np.abs(np.unique(np.asarray(draws, np.float32)))) <= {1.0, 1 + gap}


def test_bits_are_uniform_and_unrelated() -> None:
    def bits_of(seed: int, step: int, leaf: int) -> np.ndarray:
        return np.asarray(bits_for(jnp.uint32(seed), jnp.uint32(step))[leaf])

    first = bits_of(0, 0, 0)
    counts = np.bincount(first & 0xFF, minlength=256)
    chi_square = ((counts - DRAWS / 256) ** 2 / (DRAWS / 256)).sum()
    assert abs(chi_square - 255) < 4 * (2 * 255) ** 0.5
    for other in (bits_of(1, 0, 0), bits_of(0, 1, 0), bits_of(0, 0, 1)):
        for one, two in ((first, other), (first[1:], other[:-1])):
            ones, twos = (x.astype(np.float64) / 2**32 - 0.5 for x in (one, two))
            assert abs((ones * twos).mean() * 12) < 4 / DRAWS**0.5
    ones = first.astype(np.float64) / 2**32 - 0.5
    assert abs((ones[1:] * ones[:-1]).mean() * 12) < 4 / DRAWS**0.5


@pytest.mark.parametrize("spec", (("data",), (None, "data")))
@pytest.mark.parametrize("num_devices", (2, 8))
def test_the_same_bits_on_any_shards(
    num_devices: int, spec: tuple[str | None, ...]
) -> None:
    values = jax.random.normal(jax.random.key(0), (16, 24))
    whole = draw(values, seed=3, step=5, leaf=2)
    sharding = NamedSharding(mesh_of(num_devices), PartitionSpec(*spec))
    placed = jax.device_put(values, sharding)
    sharded = jax.jit(lambda x: stochastic_round(x, seed=3, step=5, leaf=2))(placed)
    assert sharded.sharding.is_equivalent_to(sharding, 2)
    np.testing.assert_array_equal(
        *(np.asarray(x, np.float32) for x in (whole, sharded))
    )
    other = draw(values, seed=3, step=6, leaf=2)
    assert bool((other != whole).any())


def test_a_shard_knows_its_place() -> None:
    whole = element_index((6, 8))[1]
    part = element_index((3, 4), global_shape=(6, 8), starts=(3, 4))[1]
    np.testing.assert_array_equal(part, whole[3:, 4:])


def test_rows_tell_elements_of_huge_arrays_apart() -> None:
    """2^33 elements: the index alone repeats."""
    shape = (2**17, 2**16)
    rows, indices = [], []
    for start in (0, 2**16):
        row, index = element_index((1, 4), global_shape=shape, starts=(start, 0))
        rows.append(row)
        indices.append(index)
    np.testing.assert_array_equal(*indices)
    bits = [
        random_bits(jnp.uint32(1), r, i) for r, i in zip(rows, indices, strict=True)
    ]
    assert bool((bits[0] != bits[1]).any())


def test_what_is_not_finite_stays_what_it_is() -> None:
    values = jnp.float32([np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 0.0, 1.0])
    for bits in (0, 0xFFFF, 0xFFFFFFFF):
        got = round_with_bits(values, jnp.full(7, bits, jnp.uint32))
        nearest = values.astype(jnp.bfloat16)
        np.testing.assert_array_equal(
            np.asarray(got[:5], np.float32), np.asarray(nearest[:5], np.float32)
        )
        assert got[5:].tolist() == [0.0, 1.0]
