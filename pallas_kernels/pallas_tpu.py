"""The kernels for TPUs: the fused update in place, and quantizing.

Lives here: the bodies of Pallas kernels over blocks of rows. The same bodies run in
Pallas' interpreter on a CPU, in every supported JAX. May import: `rows.py`,
`update.py`, `linear.py`. Read next: `rows.py`.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.linear import Bits, from_codes, pack, to_codes, to_scale, unpack
from pallas_kernels.rounding import random_bits
from pallas_kernels.rows import ROW_ELEMS, RowsFormat, RowsState
from pallas_kernels.rules import Rule, Scalars
from pallas_kernels.update import LeafState, update_values

__all__ = ["dequantize_rows", "quantize_rows", "update_rows"]

# (rows, 256) in float32: 256 KiB per array, and a dozen arrays fit twice into VMEM.
_BLOCK_ROWS = 256


def update_rows(
    rule: Rule, form: RowsFormat, state: RowsState, *, interpret: bool = False
) -> tuple[list[jax.Array], jax.Array | None]:
    """Updates rows of 256 elements in place.

    Args:
        rule: The optimizer.
        form: What the rows hold.
        state: Arrays of (rows, 256).
        interpret: Run by the interpreter, on a CPU.

    Returns:
        New parameters, moments and scales, in the order of `RowsState.kept`; and the
        copy of the parameters, or None.
    """
    num_rows = state.grad.shape[0]
    block = min(num_rows, _BLOCK_ROWS)
    wide, narrow = _rows(num_rows, ROW_ELEMS), _rows(num_rows, 1)
    shared = pl.BlockSpec(memory_space=pltpu.SMEM)
    # A scale per row as a column: rank 2 is what the hardware's tiles know.
    kept = [a if a.ndim == 2 else a.reshape(-1, 1) for a in state.kept]
    inputs = [state.packed, state.words, state.grad]
    specs = [shared, shared, wide]
    if state.bits is not None:
        inputs.append(state.bits)
        specs.append(wide)
    kept_specs = [wide if a.shape[1] == ROW_ELEMS else narrow for a in kept]
    out_types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in kept]
    out_specs = list(kept_specs)
    if form.copy_dtype is not None:
        out_types.append(jax.ShapeDtypeStruct(state.grad.shape, form.copy_dtype))
        out_specs.append(wide)
    new = pl.pallas_call(
        functools.partial(_body, rule, form, state.bits is not None, block),
        out_shape=out_types,
        grid=(pl.cdiv(num_rows, block),),
        in_specs=[*specs, *kept_specs],
        out_specs=out_specs,
        input_output_aliases={len(inputs) + i: i for i in range(len(kept))},
        interpret=interpret,
    )(*inputs, *kept)
    updated = [a.reshape(b.shape) for a, b in zip(new, state.kept, strict=False)]
    return updated, new[-1] if form.copy_dtype is not None else None


def _body(rule: Rule, form: RowsFormat, has_bits: bool, block: int, *refs: Any) -> None:
    packed, words, grad, *rest = refs
    bits_ref = rest.pop(0) if has_bits else None
    num_moments = len(rule.signs)
    num_kept = 1 + num_moments * (2 if form.is_coded else 1)
    old, new_refs = [ref[...] for ref in rest[:num_kept]], rest[num_kept:]
    bits = None
    if bits_ref is not None:
        bits = bits_ref[...]
    elif form.is_stochastic:
        shape = (block, ROW_ELEMS)
        row = jax.lax.broadcasted_iota(jnp.uint32, shape, 0)
        column = jax.lax.broadcasted_iota(jnp.uint32, shape, 1)
        first = words[1] + pl.program_id(0).astype(jnp.uint32) * jnp.uint32(
            block * ROW_ELEMS
        )
        index = first + row * jnp.uint32(ROW_ELEMS) + column
        bits = random_bits(words[0], jnp.uint32(0), index)
    done = update_values(
        rule,
        LeafState(
            old[0],
            grad[...],
            tuple(old[1 : 1 + num_moments]),
            tuple(old[1 + num_moments :]),
        ),
        Scalars(*(packed[i] for i in range(len(Scalars._fields)))),
        block_max=lambda values: jnp.max(values, axis=1, keepdims=True),
        bits=bits,
        copy_dtype=form.copy_dtype,
    )
    results = [done.param, *done.moments, *done.scales]
    if form.copy_dtype is not None:
        results.append(done.copy)
    for ref, value in zip(new_refs, results, strict=True):
        ref[...] = value


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
    """
    num_rows = values.shape[0]
    width, dtype = ROW_ELEMS * bits // 8, jnp.int8 if bits == 8 else jnp.uint8
    codes, scales = pl.pallas_call(
        functools.partial(_quantize, bits),
        out_shape=[
            jax.ShapeDtypeStruct((num_rows, width), dtype),
            jax.ShapeDtypeStruct((num_rows, 1), jnp.float32),
        ],
        grid=(pl.cdiv(num_rows, _BLOCK_ROWS),),
        in_specs=[_rows(num_rows, ROW_ELEMS)],
        out_specs=[_rows(num_rows, width), _rows(num_rows, 1)],
        interpret=interpret,
    )(values)
    return codes, scales.reshape(-1)


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
    """
    num_rows, width = codes.shape
    return pl.pallas_call(
        functools.partial(_dequantize, bits),
        out_shape=jax.ShapeDtypeStruct((num_rows, ROW_ELEMS), jnp.float32),
        grid=(pl.cdiv(num_rows, _BLOCK_ROWS),),
        in_specs=[_rows(num_rows, width), _rows(num_rows, 1)],
        out_specs=_rows(num_rows, ROW_ELEMS),
        interpret=interpret,
    )(codes, scales.reshape(-1, 1))


def _rows(num_rows: int, width: int) -> pl.BlockSpec:
    return pl.BlockSpec((min(num_rows, _BLOCK_ROWS), width), lambda i: (i, 0))


def _quantize(bits: Bits, values_ref: Any, codes_ref: Any, scales_ref: Any) -> None:
    values = values_ref[...].astype(jnp.float32)
    largest = jnp.max(jnp.abs(values), axis=1, keepdims=True)
    scales = to_scale(largest, bits)
    codes = to_codes(values, scales, bits)
    half = ROW_ELEMS // 2
    if bits == 8:
        codes_ref[...] = codes.astype(jnp.int8)
    else:
        codes_ref[...] = pack(codes[:, :half], codes[:, half:])
    scales_ref[...] = scales


def _dequantize(bits: Bits, codes_ref: Any, scales_ref: Any, values_ref: Any) -> None:
    codes, scales = codes_ref[...], scales_ref[...]
    if bits == 8:
        values_ref[...] = from_codes(codes, scales)
        return
    half = ROW_ELEMS // 2
    low, high = unpack(codes)
    values_ref[:, :half] = from_codes(low, scales)
    values_ref[:, half:] = from_codes(high, scales)
