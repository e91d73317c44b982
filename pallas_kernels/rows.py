"""Leaves as rows of 256 elements, and small leaves side by side in one array.

Lives here: what a kernel is given, and the way there and back. A kernel knows nothing
of shapes: it sees rows, each a block of 8-bit codes or just 256 elements. May import:
`rounding.py`, `rules.py`, `update.py`. Read next: `fused.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.rounding import element_index, random_bits
from pallas_kernels.rules import Rule, Scalars
from pallas_kernels.shardwise import Dims, Place
from pallas_kernels.update import LeafFormat, LeafState

__all__ = ["Member", "RowsFormat", "RowsState", "fits_rows", "join", "split"]

ROW_ELEMS = 256
CHUNK_ELEMS = 4 * ROW_ELEMS


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsFormat:
    """What rows hold.

    Attributes:
        is_coded: Moments are 8-bit codes, one row a block.
        copy_dtype: Also write the new parameters in this dtype, or None.
        is_stochastic: Parameters are rounded by chance.
    """

    is_coded: bool
    copy_dtype: Any
    is_stochastic: bool


class RowsState(NamedTuple):
    """What a kernel is given.

    Attributes:
        packed: The `Scalars`, float32 (5,).
        words: uint32 (2,): the key of random bits, and the index of the first element
            in its whole array.
        grad: (rows, 256).
        bits: Random bits (rows, 256), where they cannot be worked out from `words`;
            else None.
        kept: What is updated in place: the parameter, the moments (rows, 256), and
            the scales (rows,).
    """

    packed: jax.Array
    words: jax.Array
    grad: jax.Array
    bits: jax.Array | None
    kept: list[jax.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One leaf, or a shard of it, among those of a launch.

    Attributes:
        form: How it is stored.
        state: Its arrays.
        key: The key of its random bits.
        dims: The names of its dims.
        place: Where the shard lies.
    """

    form: LeafFormat
    state: LeafState
    key: Any
    dims: Dims
    place: Place


def fits_rows(form: LeafFormat, shape: Sequence[int]) -> bool:
    """Says whether each block of a leaf is 256 neighbours in memory.

    Moments as they are may be cut anywhere.

    Example:
        >>> fits_rows(LeafFormat(tile=(1, 4, 64)), (8, 16, 64))
        True
        >>> fits_rows(LeafFormat(tile=(8, 29)), (768, 50257))
        False
    """
    if form.tile is None:
        return True
    if prod(form.tile) != ROW_ELEMS:
        return False
    is_cut = False
    for side, length in zip(reversed(form.tile), reversed(shape), strict=True):
        if is_cut and side != 1:
            return False
        is_cut = is_cut or side != length
    return True


def join(rule: Rule, members: Sequence[Member], scalars: Scalars) -> RowsState:
    """Lays the leaves of one launch side by side.

    One leaf whose elements fill whole chunks is not copied.
    """
    first = members[0]
    is_random = first.form.is_stochastic
    words = jnp.zeros(2, jnp.uint32)
    bits = None
    if is_random:
        start = _first_index(first) if len(members) == 1 else None
        if start is None:
            bits = _bits(members)
        else:
            words = jnp.stack([first.key, start])
    kept = [_rows([m.state.param for m in members])]
    for i in range(len(rule.signs)):
        kept.append(_rows([m.state.moments[i] for m in members]))
    if first.form.tile is not None:
        for i in range(len(rule.signs)):
            kept.append(_flat([m.state.scales[i] for m in members], 4))
    return RowsState(
        packed=jnp.stack(scalars),
        words=words,
        grad=_rows([m.state.grad for m in members]),
        bits=bits,
        kept=kept,
    )


def split(array: jax.Array, shapes: Sequence[Sequence[int]]) -> list[jax.Array]:
    """Undoes the laying side by side, for one of the arrays.

    Args:
        array: (rows, 256), or (rows,).
        shapes: The shape of each leaf's part.
    """
    flat, start, parts = array.reshape(-1), 0, []
    unit = ROW_ELEMS if array.ndim == 2 else 1
    for shape in shapes:
        size = prod(shape)
        parts.append(
            jax.lax.slice_in_dim(flat, start, start + size).reshape(tuple(shape))
        )
        start += -(-size // unit) * unit
    return parts


def _rows(arrays: Sequence[jax.Array]) -> jax.Array:
    """Joins arrays, each filled up to whole rows, and all of them to whole chunks."""
    padded = [_pad(array.reshape(-1), ROW_ELEMS) for array in arrays]
    return _flat(padded, CHUNK_ELEMS).reshape(-1, ROW_ELEMS)


def _flat(arrays: Sequence[jax.Array], unit: int) -> jax.Array:
    flat = [array.reshape(-1) for array in arrays]
    joined = flat[0] if len(flat) == 1 else jnp.concatenate(flat)
    return _pad(joined, unit)


def _pad(flat: jax.Array, unit: int) -> jax.Array:
    missing = -flat.size % unit
    return jnp.pad(flat, (0, missing)) if missing else flat


def _first_index(member: Member) -> Any | None:
    """Returns the index of a shard's first element, if the rest follow one by one."""
    shape = member.state.param.shape
    whole = member.place.whole_shape(member.dims, shape)
    if prod(whole) >= 2**32:
        return None
    starts = member.place.starts(member.dims, shape)
    # Dims before the one that is cut must be of one element in the shard.
    for dim in range(len(shape)):
        if shape[dim] != whole[dim] and prod(shape[:dim]) != 1:
            return None
    index = jnp.uint32(0)
    for dim, start in enumerate(starts):
        index = index + start * jnp.uint32(prod(whole[dim + 1 :]))
    return index


def _bits(members: Sequence[Member]) -> jax.Array:
    """Returns the random bits of all members, worked out at once."""
    found = [
        element_index(
            member.state.param.shape,
            global_shape=member.place.whole_shape(
                member.dims, member.state.param.shape
            ),
            starts=member.place.starts(member.dims, member.state.param.shape),
        )
        for member in members
    ]
    index = _rows([place for _, place in found])
    lengths = [-(-m.state.param.size // ROW_ELEMS) for m in members]
    keys = [jnp.full(n, m.key) for n, m in zip(lengths, members, strict=True)]
    key = _flat(keys, CHUNK_ELEMS // ROW_ELEMS).reshape(-1, 1)
    key = jnp.broadcast_to(key, index.shape)
    # Only one array alone is so large that its rows count.
    row = _rows([found[0][0]]) if len(members) == 1 else jnp.uint32(0)
    return random_bits(key, row, index)
