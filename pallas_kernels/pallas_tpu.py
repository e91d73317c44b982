"""The fused update as one Pallas kernel for TPUs, in place.

Lives here: the kernel's body over blocks of rows. The same body runs in Pallas'
interpreter on a CPU, in every supported JAX. May import: `rows.py`, `update.py`. Read
next: `rows.py`.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.rounding import random_bits
from pallas_kernels.rows import ROW_ELEMS, RowsFormat, RowsState
from pallas_kernels.rules import Rule, Scalars
from pallas_kernels.update import LeafState, update_values

__all__ = ["update_rows"]

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
    wide = pl.BlockSpec((block, ROW_ELEMS), lambda i: (i, 0))
    narrow = pl.BlockSpec((block, 1), lambda i: (i, 0))
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
