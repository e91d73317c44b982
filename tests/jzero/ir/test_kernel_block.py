"""Elements of each dtype are read, rounded and written as JAX does it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jzero.ir.kernel_block import Block, is_computable
from tests.jzero.ir.loops import run

HALVES = np.arange(2**16, dtype=np.uint16)
# Every sign, exponent and leading digit of float32, with digits that decide rounding.
LAST_DIGITS = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
FLOATS = ((HALVES.astype(np.uint32)[:, None] << 16) | LAST_DIGITS).view(np.float32)
IS_NORMAL = ~(np.abs(FLOATS) < np.finfo(np.float32).tiny)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_number_of_16_bits_survives(dtype: str) -> None:
    x = jax.lax.bitcast_convert_type(jnp.asarray(HALVES), dtype)
    # Numbers below the smallest normal one are zero to a processor that flushes.
    wide = np.asarray(x.astype(jnp.float32))
    (same,), (full,) = (
        run(lambda x: [x + 0], x),
        run(lambda x: [x.astype(jnp.float32)], x),
    )
    is_normal = ~(np.abs(wide) < float(jnp.finfo(dtype).tiny))
    np.testing.assert_array_equal(np.asarray(full)[is_normal], wide[is_normal])
    np.testing.assert_array_equal(
        np.asarray(same, np.float32)[is_normal], wide[is_normal]
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_is_to_nearest_and_ties_to_even(dtype: str) -> None:
    (got,) = run(lambda x: [x.astype(dtype)], jnp.asarray(FLOATS))
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = FLOATS.astype(jnp.dtype(dtype)).astype(np.float32)
    is_normal = IS_NORMAL & ~(np.abs(wanted) < float(jnp.finfo(dtype).tiny))
    np.testing.assert_array_equal(
        np.asarray(got, np.float32)[is_normal], wanted[is_normal]
    )


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "uint32"])
def test_whole_numbers_and_truth(dtype: str) -> None:
    x = jnp.asarray(np.arange(77) % 2 if dtype == "bool" else np.arange(77), dtype)
    (same, real) = run(lambda x: [x, x.astype(jnp.float32)], x)
    assert same.dtype == x.dtype
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(real, np.asarray(x, np.float32))


def test_a_constant_is_rounded_to_its_dtype() -> None:
    block = Block(2, "v")
    third = block.constant(1 / 3, "bfloat16")
    assert third.name == "<float 0x3FD5600000000000, float 0x3FD5600000000000>"
    assert third.is_repeated
    assert block.constant(True, "bool").name == "<i1 1, i1 1>"


def test_each_line_of_memory_is_fetched_ahead_once() -> None:
    block = Block(32, "v")
    block.prefetch("%p", "%i", "float32", is_written=True)
    hints = [line for line in block.lines if "@llvm.prefetch" in line]
    assert len(hints) == 2
    assert all("i32 1, i32 3, i32 1" in hint for hint in hints)
    assert sum("i64 1024" in line or "i64 1088" in line for line in block.lines) == 2


def test_what_is_not_known() -> None:
    assert is_computable(jnp.dtype("float16"))
    assert not is_computable(jnp.dtype("complex64"))
    assert not is_computable(jnp.dtype("float8_e4m3fn"))
