"""The fused update as one Mosaic GPU kernel, in place.

Lives here: the kernel's body, which loads rows of 256, calls the shared arithmetic and
stores. What is shared by all elements comes in a small array; a skipped step writes
nothing. May import: `compat.py`, `update.py`, `rounding.py`. Read next: `rows.py`.

Sources: JAX's Pallas Mosaic GPU; the layout of blocks is jzero's own.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels import compat
from pallas_kernels.rounding import random_bits
from pallas_kernels.rows import RowsFormat, RowsState
from pallas_kernels.rules import Rule, Scalars
from pallas_kernels.update import LeafState, update_values

__all__ = ["update_rows"]


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
    chunk = jax.lax.axis_index("chunk")
    rows = pl.ds(chunk * compat.CHUNK_ROWS, compat.CHUNK_ROWS)
    is_skipped = packed[Scalars._fields.index("skip")] > 0

    @pl.when(jnp.logical_not(is_skipped))
    def _() -> None:
        bits = None
        if bits_ref is not None:
            bits = compat.load_block(bits_ref, rows)
        elif form.is_stochastic:
            first = words[1] + chunk.astype(jnp.uint32) * jnp.uint32(
                compat.CHUNK_ROWS * compat.ROW_ELEMS
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
