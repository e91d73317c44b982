"""Linear blocks of int8 and int4: the round trip within half a step."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from pallas_kernels import dequantize_blocks, quantize_blocks
from pallas_kernels.compat import has_mosaic_gpu
from tests.end_to_end.oracle import mesh_of

NAMES = ("bits", "block", "backend")
quantize = jax.jit(quantize_blocks, static_argnames=NAMES)
dequantize = jax.jit(dequantize_blocks, static_argnames=(*NAMES, "length"))
KERNELS = ["pallas_tpu_interpret"]
if has_mosaic_gpu():
    KERNELS.append("mosaic_gpu_interpret")


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


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize(
    ("dtype", "bits"), ((jnp.float32, 8), (jnp.float32, 4), (jnp.bfloat16, 8))
)
def test_kernels_give_the_codes_of_the_reference(
    dtype: Any, bits: Literal[4, 8], backend: str
) -> None:
    """Three rows, which are no whole chunk; one of zeros, one with a NaN."""
    values = jax.random.normal(jax.random.key(0), (3, 1, 512)).astype(dtype)
    values = values.at[1].set(0).at[2, 0, 7].set(jnp.nan)
    codes, scales = quantize(values, bits=bits)
    got = quantize(values, bits=bits, backend=backend)
    is_finite = np.isfinite(np.repeat(scales, codes.shape[-1] // 2, axis=-1))
    np.testing.assert_array_equal(scales, got[1])
    np.testing.assert_array_equal(np.where(is_finite, codes - got[0], 0), 0)
    back = dequantize(codes, scales, length=512, bits=bits)
    again = dequantize(codes, scales, length=512, bits=bits, backend=backend)
    assert (again.shape, again.dtype) == (back.shape, back.dtype)
    np.testing.assert_array_equal(back, again)


@pytest.mark.parametrize(("spec", "bits"), ((("data",), 8), ((None, "data"), 4)))
def test_kernels_run_on_shards(spec: Any, bits: Literal[4, 8]) -> None:
    values = jax.random.normal(jax.random.key(0), (8, 8 * 256))
    sharding = NamedSharding(mesh_of(8), PartitionSpec(*spec))
    placed = jax.device_put(values, sharding)
    kernel: dict[str, Any] = {"bits": bits, "backend": KERNELS[0]}

    @jax.jit
    def round_trip(x: jax.Array) -> Any:
        codes, scales = quantize_blocks(x, **kernel)
        return codes, scales, dequantize_blocks(codes, scales, length=2048, **kernel)

    compiled = round_trip.lower(placed).compile()
    assert "all-" not in (compiled.as_text() or "")
    want = round_trip(values)
    for one, other in zip(compiled(placed), want, strict=True):
        assert one.sharding.is_equivalent_to(sharding, 2)
        np.testing.assert_array_equal(one, other)


def test_halves_of_a_block_share_bytes() -> None:
    codes, _ = quantize_blocks(jnp.float32([1, 2, 3, 7, -7, 5, 6]), bits=4, block=4)
    # Blocks (1, 2, 3, 7) with scale 1, and (-7, 5, 6).
    assert codes.tolist() == [1 + 3 * 16, 2 + 7 * 16, 9 + 6 * 16, 5]


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


@pytest.mark.parametrize(("length", "block"), [(300, 256), (512, 128)])
def test_blocks_that_are_no_rows_are_refused_by_kernels(
    length: int, block: int
) -> None:
    values = jnp.ones((2, length))
    with pytest.raises(ValueError, match=r"whole blocks of 256.*\n.*xla"):
        quantize_blocks(values, block=block, backend="pallas_tpu")
    codes, scales = quantize_blocks(values, block=block)
    with pytest.raises(ValueError, match="whole blocks of 256"):
        dequantize_blocks(
            codes, scales, length=length, block=block, backend="pallas_tpu"
        )
    with pytest.raises(ValueError, match="no backend"):
        quantize_blocks(values, backend="cuda")


def test_a_scalar_is_refused() -> None:
    with pytest.raises(ValueError, match="reshape"):
        quantize_blocks(jnp.ones(()))
