"""Blocks of an array as int8 or int4 with one scale each.

Lives here: symmetric linear quantization, for values that travel (compressed
collectives) rather than for optimizer moments, whose seven decades want the codes of
`codes.py`. May import: jax alone. Read next: `fused.py`.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

__all__ = ["dequantize_blocks", "quantize_blocks"]

Bits = Literal[4, 8]


def quantize_blocks(
    values: jax.Array, *, bits: Bits = 8, block: int = 256
) -> tuple[jax.Array, jax.Array]:
    """Quantizes the last dim block by block.

    The scale is the largest magnitude of a block over 127 (or 7), so every value is
    off by at most half a scale: 1/254 (or 1/14) of the block's largest magnitude.

    Args:
        values: Any float dtype, shape (..., length).
        bits: 8, or 4 with two values in a byte.
        block: Elements of one scale. A last block may be shorter.

    Returns:
        Codes int8 (..., length), or uint8 (..., ceil(length / 2)) with the even
        element in the lower half; and float32 scales (..., ceil(length / block)).
        Values that are not finite make their block's scale so.

    Raises:
        ValueError: The bits are not 4 or 8, there is no last dim, or a block of 4-bit
            values is not even.

    Example:
        >>> codes, scales = quantize_blocks(jnp.arange(4.0), block=2)
        >>> codes.tolist(), [round(float(s) * 127, 4) for s in scales]
        ([0, 127, 85, 127], [1.0, 3.0])
    """
    _check(bits, block)
    if not values.ndim:
        raise ValueError("A scalar has no blocks.\nRemedy: reshape it to (1,).")
    top = 127 if bits == 8 else 7
    length = values.shape[-1]
    blocks = _to_blocks(values.astype(jnp.float32), block)
    largest = jnp.max(jnp.abs(blocks), axis=-1, initial=0.0)
    # Multiplied: `largest / 127` need not be the float that times 127 gives it back.
    scales = largest * jnp.float32(1 / top)
    safe = jnp.where(scales > 0, scales, 1.0)
    codes = jnp.clip(jnp.round(blocks / jnp.expand_dims(safe, -1)), -top, top)
    flat = codes.astype(jnp.int8).reshape(*values.shape[:-1], -1)[..., :length]
    return (flat if bits == 8 else _pack(flat)), scales


def dequantize_blocks(
    codes: jax.Array,
    scales: jax.Array,
    *,
    length: int,
    bits: Bits = 8,
    block: int = 256,
) -> jax.Array:
    """Undoes `quantize_blocks`, up to half a scale.

    Args:
        codes: From `quantize_blocks`.
        scales: From `quantize_blocks`.
        length: The last dim of the quantized array.
        bits: As for quantizing.
        block: As for quantizing.

    Returns:
        float32 (..., length).

    Raises:
        ValueError: The bits or the block are not valid.

    Example:
        >>> codes, scales = quantize_blocks(jnp.float32([1.0, -7.0, 3.0]), bits=4)
        >>> dequantize_blocks(codes, scales, length=3, bits=4).tolist()
        [1.0, -7.0, 3.0]
    """
    _check(bits, block)
    flat = codes if bits == 8 else _unpack(codes)[..., :length]
    blocks = _to_blocks(flat.astype(jnp.float32), block)
    values = blocks * jnp.expand_dims(scales, -1)
    return values.reshape(*codes.shape[:-1], -1)[..., :length]


def _check(bits: int, block: int) -> None:
    if bits not in (4, 8):
        raise ValueError(f"There are no codes of {bits} bits.\nRemedy: pass 4 or 8.")
    if block < 1 or (bits == 4 and block % 2):
        raise ValueError(
            f"A block of {block} elements does not fill whole bytes of {bits}-bit "
            "codes.\nRemedy: pass an even number of at least 2."
        )


def _to_blocks(values: jax.Array, block: int) -> jax.Array:
    """Splits the last dim into (blocks, block), filled up with zeros."""
    length = values.shape[-1]
    num_blocks = -(-length // block)
    widths = [(0, 0)] * (values.ndim - 1) + [(0, num_blocks * block - length)]
    return jnp.pad(values, widths).reshape(*values.shape[:-1], num_blocks, block)


def _pack(codes: jax.Array) -> jax.Array:
    if codes.shape[-1] % 2:
        codes = jnp.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, 1)])
    halves = codes.astype(jnp.uint8) & jnp.uint8(0xF)
    return halves[..., 0::2] | (halves[..., 1::2] << jnp.uint8(4))


def _unpack(packed: jax.Array) -> jax.Array:
    low, high = packed & jnp.uint8(0xF), packed >> jnp.uint8(4)
    both = jnp.stack([low, high], axis=-1).reshape(*packed.shape[:-1], -1)
    signed = both.astype(jnp.int8)
    return jnp.where(signed > 7, signed - jnp.int8(16), signed)
