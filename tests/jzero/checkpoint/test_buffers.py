"""Memory is used again, never by two at once, and JAX copies what is in it."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest

from jzero.checkpoint.buffers import Buffers

BYTES = np.dtype("uint8")


@pytest.mark.parametrize("dtype", ["float32", "complex64", "bool", ml_dtypes.int4])
@pytest.mark.parametrize("shape", [(), (3, 5), (4096, 16)])
def test_jax_owns_its_copy(shape: tuple[int, ...], dtype: str) -> None:
    """Else a step that is given the array could not write its result there."""
    taken = Buffers(0).take(shape, np.dtype(dtype))
    taken[...] = 1
    placed = jax.block_until_ready(jax.device_put(taken, jax.devices()[1]))
    assert placed.unsafe_buffer_pointer() != taken.ctypes.data
    taken[...] = 0
    np.testing.assert_array_equal(np.asarray(placed), np.ones(shape, dtype))


def test_what_is_in_use_is_not_given_out() -> None:
    buffers = Buffers(10_000)
    one, two = buffers.take((1000,), BYTES), buffers.take((1000,), BYTES)
    assert not np.shares_memory(one, two)
    buffers.give_back(two)
    three = buffers.take((900,), BYTES)
    assert np.shares_memory(two, three) and not np.shares_memory(one, three)


def test_much_larger_memory_is_left_for_others() -> None:
    buffers = Buffers(100_000)
    large = buffers.take((50_000,), BYTES)
    buffers.give_back(large)
    assert not np.shares_memory(buffers.take((10,), BYTES), large)


def test_no_more_is_kept_than_allowed() -> None:
    buffers = Buffers(3000)
    taken = [buffers.take((1000,), BYTES) for _ in range(4)]
    for each in taken:
        buffers.give_back(each)
    again = [buffers.take((1000,), BYTES) for _ in range(4)]
    shared = sum(any(np.shares_memory(a, b) for b in taken) for a in again)
    assert shared == 2
