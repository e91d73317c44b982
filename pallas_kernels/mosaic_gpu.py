"""The kernels for NVIDIA GPUs: the fused update in place, and quantizing.

Lives here: the bodies of Mosaic GPU kernels, which load rows of 256, call the shared
arithmetic and store. What is shared by all elements of an update comes in a small
array; a skipped step writes nothing. May import: `compat.py`, `update.py`,
`linear.py`, `rounding.py`. Read next: `rows.py`.

Sources: JAX's Pallas Mosaic GPU; the layout of blocks is jzero's own.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels import compat
from pallas_kernels.linear import Bits, from_codes, pack, to_codes, to_scale, unpack
from pallas_kernels.rounding import random_bits
from pallas_kernels.rows import RowsFormat, RowsState
from pallas_kernels.rules import Rule, Scalars
from pallas_kernels.update import LeafState, update_values

__all__ = ["dequantize_rows", "quantize_rows", "update_rows"]


def update_rows(
    rule: Rule, form: RowsFormat, state: RowsState, *, interpret: bool = False
) -> tuple[list[jax.Array], jax.Array | None]:
    """Updates rows of 256 elements in place.

    Args:
        rule: The optimizer.
        form: What the rows hold.
        state: Arrays of (rows, 256), the number of rows a multiple of four.
        interpret: Run by the interpreter, on a CPU.

    Returns:
        New parameters, moments and scales, in the order of `RowsState.kept`; and the
        copy of the parameters, or None.

    Raises:
        NotImplementedError: This JAX is too old.
    """
    compat.check_version()
    inputs = [state.packed, state.words, state.grad]
    if state.bits is not None:
        inputs.append(state.bits)
    outputs = list(state.kept)
    if form.copy_dtype is not None:
        outputs.append(jax.lax.empty(state.grad.shape, jnp.dtype(form.copy_dtype)))
    kept = compat.launch_in_place(
        functools.partial(_body, rule, form, state.bits is not None),
        inputs,
        outputs,
        num_chunks=state.grad.shape[0] // compat.CHUNK_ROWS,
        interpret=interpret,
    )
    copy = kept.pop() if form.copy_dtype is not None else None
    return kept, copy


def _body(rule: Rule, form: RowsFormat, has_bits: bool, *refs: Any) -> None:
    packed, words, grad, *rest = refs
    bits_ref = rest.pop(0) if has_bits else None
    num_moments = len(rule.signs)
    param, *rest = rest
    moments, rest = rest[:num_moments], rest[num_moments:]
    num_scales = num_moments if form.is_coded else 0
    scales, rest = rest[:num_scales], rest[num_scales:]
    copy = rest[0] if rest else None
    rows = _chunk()
    is_skipped = packed[Scalars._fields.index("skip")] > 0

    @pl.when(jnp.logical_not(is_skipped))
    def _() -> None:
        bits = None
        if bits_ref is not None:
            bits = compat.load_block(bits_ref, rows)
        elif form.is_stochastic:
            first = words[1] + rows.start.astype(jnp.uint32) * jnp.uint32(
                compat.ROW_ELEMS
            )
            bits = random_bits(words[0], jnp.uint32(0), first + compat.position())
        largest: list[Any] = []

        def block_max(values: Any) -> Any:
            per_row, spread = compat.spread_max(values)
            largest.append(per_row)
            return spread

        new = update_values(
            rule,
            LeafState(
                compat.load_block(param, rows),
                compat.load_block(grad, rows),
                tuple(compat.load_block(ref, rows) for ref in moments),
                tuple(compat.load_scales(ref, rows) for ref in scales),
            ),
            Scalars(*(packed[i] for i in range(4)), skip=None),
            block_max=block_max,
            bits=bits,
            copy_dtype=form.copy_dtype,
        )
        param[rows] = new.param
        for ref, values in zip(moments, new.moments, strict=True):
            ref[rows] = values
        for ref, per_row in zip(scales, largest, strict=True):
            compat.store_scales(ref, rows, per_row)
        if copy is not None:
            copy[rows] = new.copy

    if copy is not None:

        @pl.when(is_skipped)
        def _() -> None:
            kept = compat.load_block(param, rows).astype(jnp.float32)
            copy[rows] = kept.astype(form.copy_dtype)


def quantize_rows(
    values: jax.Array, *, bits: Bits, interpret: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Quantizes rows of 256 elements, one block each.

    Args:
        values: (rows, 256), any float dtype.
        bits: 8 or 4.
        interpret: Run by the interpreter, on a CPU.

    Returns:
        int8 (rows, 256) or uint8 (rows, 128), and float32 scales (rows,).

    Raises:
        NotImplementedError: This JAX is too old.
    """
    compat.check_version()
    num_rows = values.shape[0]
    values = _fill_up(values)
    dtype = jnp.dtype(jnp.int8 if bits == 8 else jnp.uint8)
    width = values.shape[1] * bits // 8
    codes, scales = compat.launch_in_place(
        functools.partial(_quantize, bits),
        [values],
        [
            jax.lax.empty((values.shape[0], width), dtype),
            jax.lax.empty((values.shape[0],), jnp.dtype(jnp.float32)),
        ],
        num_chunks=values.shape[0] // compat.CHUNK_ROWS,
        interpret=interpret,
    )
    return codes[:num_rows], scales[:num_rows]


def dequantize_rows(
    codes: jax.Array, scales: jax.Array, *, bits: Bits, interpret: bool = False
) -> jax.Array:
    """Undoes `quantize_rows`.

    Args:
        codes: int8 (rows, 256) or uint8 (rows, 128).
        scales: float32 (rows,).
        bits: 8 or 4.
        interpret: Run by the interpreter, on a CPU.

    Returns:
        float32 (rows, 256).

    Raises:
        NotImplementedError: This JAX is too old.
    """
    compat.check_version()
    num_rows = codes.shape[0]
    codes, scales = _fill_up(codes), _fill_up(scales)
    (values,) = compat.launch_in_place(
        functools.partial(_dequantize, bits),
        [codes, scales],
        [jax.lax.empty((codes.shape[0], compat.ROW_ELEMS), jnp.dtype(jnp.float32))],
        num_chunks=codes.shape[0] // compat.CHUNK_ROWS,
        interpret=interpret,
    )
    return values[:num_rows]


def _fill_up(rows: jax.Array) -> jax.Array:
    """Adds rows of zeros up to whole chunks; copies only where there are some."""
    missing = -rows.shape[0] % compat.CHUNK_ROWS
    widths = [(0, missing)] + [(0, 0)] * (rows.ndim - 1)
    return jnp.pad(rows, widths) if missing else rows


def _chunk() -> Any:
    return pl.ds(jax.lax.axis_index("chunk") * compat.CHUNK_ROWS, compat.CHUNK_ROWS)


def _quantize(bits: Bits, values: Any, codes: Any, scales: Any) -> None:
    rows = _chunk()
    if bits == 8:
        whole = compat.load_block(values, rows).astype(jnp.float32)
        largest, spread = compat.spread_max(jnp.abs(whole))
        number = to_codes(whole, to_scale(spread, bits), bits)
        codes[rows] = number.astype(jnp.int8)
    else:
        low, high = (
            compat.load_half(values, rows, half).astype(jnp.float32) for half in (0, 1)
        )
        both = jnp.maximum(jnp.abs(low), jnp.abs(high))
        largest, spread = compat.spread_max(both)
        scale = to_scale(spread, bits)
        codes[rows] = pack(to_codes(low, scale, bits), to_codes(high, scale, bits))
    compat.store_scales(scales, rows, to_scale(largest, bits))


def _dequantize(bits: Bits, codes: Any, scales: Any, values: Any) -> None:
    rows = _chunk()
    number = compat.load_block(codes, rows)
    spread = compat.load_scales(scales, rows, number.shape[1])
    if bits == 8:
        values[rows] = from_codes(number, spread)
        return
    for half, part in enumerate(unpack(number)):
        compat.store_half(values, rows, half, from_codes(part, spread))
