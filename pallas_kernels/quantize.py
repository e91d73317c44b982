"""Blocks of an array as int8 or int4 with one scale each.

Lives here: symmetric linear quantization, for values that travel (compressed
collectives) rather than for optimizer moments, whose seven decades want the codes of
`codes.py`; the reference, and the choice of a kernel. May import: `backends.py`,
`linear.py`, `rows.py`, `shardwise.py`. Read next: `linear.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pallas_kernels.backends import (
    check_backend,
    find_kernel,
    is_reference,
    runs_on_shards,
)
from pallas_kernels.linear import Bits, from_codes, pack, to_codes, to_scale, unpack
from pallas_kernels.rows import ROW_ELEMS
from pallas_kernels.shardwise import WHOLE, Dim, Dims, Local, shardwise

__all__ = ["dequantize_blocks", "quantize_blocks"]


def quantize_blocks(
    values: jax.Array, *, bits: Bits = 8, block: int = 256, backend: str = "auto"
) -> tuple[jax.Array, jax.Array]:
    """Quantizes the last dim block by block.

    The scale is the largest magnitude of a block over 127 (or 7), so every value is
    off by at most half a scale: 1/254 (or 1/14) of the block's largest magnitude.

    Args:
        values: Any float dtype, shape (..., length).
        bits: 8, or 4 with two values in a byte.
        block: Elements of one scale. A last block may be shorter.
        backend: Of `fused_update`. Kernels want whole blocks of 256.

    Returns:
        Codes int8 (..., length), or uint8 (..., ceil(length / 2)): of each block, the
        first half of its elements in the lower halves of its bytes, and the rest in
        the upper. And float32 scales (..., ceil(length / block)). Values that are not
        finite make their block's scale so.

    Raises:
        ValueError: The bits are not 4 or 8, there is no last dim, a block of 4-bit
            values is not even, there is no such backend, or its kernel does not take
            these blocks.
        NotImplementedError: This JAX is too old for the backend.

    Example:
        >>> codes, scales = quantize_blocks(jnp.arange(4.0), block=2)
        >>> codes.tolist(), [round(float(s) * 127, 4) for s in scales]
        ([0, 127, 85, 127], [1.0, 3.0])
    """
    _check(bits, block, backend)
    if not values.ndim:
        raise ValueError("A scalar has no blocks.\nRemedy: reshape it to (1,).")
    if is_reference(backend) or not values.size:
        return _quantize(values, bits, block)
    length = values.shape[-1]
    _check_rows(length, block, backend)
    quantize_rows = find_kernel(backend, "quantize_rows")

    def local(place: object, shard: jax.Array) -> list[jax.Array]:
        codes, scales = quantize_rows(shard.reshape(-1, ROW_ELEMS), bits=bits)
        lead = shard.shape[:-1]
        return [codes.reshape(*lead, -1), scales.reshape(*lead, -1)]

    dims = _dims(values.shape[:-1], length // ROW_ELEMS)
    codes, scales = _run(local, [values], dims, num_results=2, backend=backend)
    return codes, scales


def dequantize_blocks(
    codes: jax.Array,
    scales: jax.Array,
    *,
    length: int,
    bits: Bits = 8,
    block: int = 256,
    backend: str = "auto",
) -> jax.Array:
    """Undoes `quantize_blocks`, up to half a scale.

    Args:
        codes: From `quantize_blocks`.
        scales: From `quantize_blocks`.
        length: The last dim of the quantized array.
        bits: As for quantizing.
        block: As for quantizing.
        backend: Of `fused_update`. Any reads what another wrote.

    Returns:
        float32 (..., length).

    Raises:
        ValueError: As for quantizing.
        NotImplementedError: This JAX is too old for the backend.

    Example:
        >>> codes, scales = quantize_blocks(jnp.float32([1.0, -7.0, 3.0]), bits=4)
        >>> dequantize_blocks(codes, scales, length=3, bits=4).tolist()
        [1.0, -7.0, 3.0]
    """
    _check(bits, block, backend)
    if is_reference(backend) or not codes.size:
        return _dequantize(codes, scales, length, bits, block)
    _check_rows(length, block, backend)
    dequantize_rows = find_kernel(backend, "dequantize_rows")

    def local(place: object, codes: jax.Array, scales: jax.Array) -> list[jax.Array]:
        width = ROW_ELEMS * bits // 8
        rows = dequantize_rows(codes.reshape(-1, width), scales.reshape(-1), bits=bits)
        return [rows.reshape(*codes.shape[:-1], -1)]

    dims = _dims(codes.shape[:-1], length // ROW_ELEMS)
    return _run(local, [codes, scales], dims, num_results=1, backend=backend)[0]


def _run(
    local: Local,
    arrays: Sequence[jax.Array],
    dims: Dims,
    *,
    num_results: int,
    backend: str,
) -> list[jax.Array]:
    """Runs on the shards of the arrays, none of which cuts a block."""
    if not runs_on_shards(backend):
        return list(local(WHOLE, *arrays))
    return shardwise(
        local, arrays, operands=[dims] * len(arrays), results=[dims] * num_results
    )


def _dims(lead: Sequence[int], num_blocks: int) -> Dims:
    return (*(Dim(f"d{i}", n) for i, n in enumerate(lead)), Dim("blocks", num_blocks))


def _check(bits: int, block: int, backend: str) -> None:
    check_backend(backend)
    if bits not in (4, 8):
        raise ValueError(f"There are no codes of {bits} bits.\nRemedy: pass 4 or 8.")
    if block < 1 or (bits == 4 and block % 2):
        raise ValueError(
            f"A block of {block} elements does not fill whole bytes of {bits}-bit "
            "codes.\nRemedy: pass an even number of at least 2."
        )


def _check_rows(length: int, block: int, backend: str) -> None:
    if block != ROW_ELEMS or length % ROW_ELEMS:
        raise ValueError(
            f"{backend} quantizes whole blocks of {ROW_ELEMS}, and this is a dim of "
            f'{length} in blocks of {block}.\nRemedy: use backend="xla", or pad it.'
        )


def _quantize(values: jax.Array, bits: Bits, block: int) -> tuple[jax.Array, jax.Array]:
    length = values.shape[-1]
    blocks = _to_blocks(values.astype(jnp.float32), block)
    largest = jnp.max(jnp.abs(blocks), axis=-1, initial=0.0)
    scales = to_scale(largest, bits)
    codes = to_codes(blocks, jnp.expand_dims(scales, -1), bits)
    flat = codes.reshape(*values.shape[:-1], -1)[..., :length]
    return (flat.astype(jnp.int8) if bits == 8 else _halve(flat, block)), scales


def _dequantize(
    codes: jax.Array, scales: jax.Array, length: int, bits: Bits, block: int
) -> jax.Array:
    flat = codes if bits == 8 else _unhalve(codes, length, block)
    blocks = _to_blocks(flat, block)
    values = from_codes(blocks, jnp.expand_dims(scales, -1))
    return values.reshape(*codes.shape[:-1], -1)[..., :length]


def _to_blocks(values: jax.Array, block: int) -> jax.Array:
    """Splits the last dim into (blocks, block), filled up with zeros."""
    length = values.shape[-1]
    num_blocks = -(-length // block)
    widths = [(0, 0)] * (values.ndim - 1) + [(0, num_blocks * block - length)]
    return jnp.pad(values, widths).reshape(*values.shape[:-1], num_blocks, block)


def _halve(codes: jax.Array, block: int) -> jax.Array:
    """Lays the first half of each block beside the second, in one byte each."""
    lead, length = codes.shape[:-1], codes.shape[-1]
    whole = length // block * block
    blocks = codes[..., :whole].reshape(*lead, whole // block, block)
    body = pack(blocks[..., : block // 2], blocks[..., block // 2 :])
    body = body.reshape(*lead, whole // 2)
    half = (length - whole + 1) // 2  # of what the last block holds
    low, high = codes[..., whole : whole + half], codes[..., whole + half :]
    high = jnp.pad(high, [(0, 0)] * len(lead) + [(0, half - high.shape[-1])])
    return jnp.concatenate([body, pack(low, high)], axis=-1)


def _unhalve(packed: jax.Array, length: int, block: int) -> jax.Array:
    lead, whole = packed.shape[:-1], length // block * block
    body = packed[..., : whole // 2].reshape(*lead, whole // block, block // 2)
    blocks = jnp.concatenate(unpack(body), axis=-1).reshape(*lead, whole)
    rest = jnp.concatenate(unpack(packed[..., whole // 2 :]), axis=-1)
    return jnp.concatenate([blocks, rest[..., : length - whole]], axis=-1)
