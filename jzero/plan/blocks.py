"""Leaves that hold one number per block of another leaf: scales of quantized moments.

Lives here: which leaf scales which, and how scales are sharded with their codes. May
import: `leaves.py`, `layout.py`. Read next: `plan.py`.

A field `X_scales` beside a field `X` of 8-bit integers (`mu_scales` beside `mu`) holds
the scales of its blocks: the same path from there on, the same rank, each dim a
divisor. Shape alone is no sign: other optimizers keep smaller arrays of all kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from jax.sharding import PartitionSpec

from jzero.plan.layout import normalize_spec, plan_leaf_spec
from jzero.plan.leaves import LeafFacts

__all__ = ["cut_at_blocks", "divides_blocks", "find_codes_of_scales"]

_SUFFIX = "_scales"
_CODES = (np.dtype("int8"), np.dtype("uint8"))


def find_codes_of_scales(leaves: Sequence[LeafFacts]) -> dict[int, int]:
    """Maps leaves of scales to the leaves of codes that they scale.

    Example:
        >>> import numpy as np
        >>> codes, scales = (
        ...     LeafFacts(path=name, keys=(name, "w"), arg=0, shape=(64, columns),
        ...               dtype=np.dtype(dtype))
        ...     for name, columns, dtype in [("mu", 256, "i1"), ("mu_scales", 1, "f4")]
        ... )
        >>> find_codes_of_scales([codes, scales])
        {1: 0}
    """
    by_path = {
        (leaf.arg, leaf.keys): index
        for index, leaf in enumerate(leaves)
        if leaf.dtype in _CODES
    }
    found: dict[int, int] = {}
    if not by_path:
        return found
    for index, leaf in enumerate(leaves):
        for at, key in enumerate(leaf.keys):
            if not key.endswith(_SUFFIX):
                continue
            keys = (*leaf.keys[:at], key.removesuffix(_SUFFIX), *leaf.keys[at + 1 :])
            codes = by_path.get((leaf.arg, keys))
            if codes is not None and _is_tiled(leaves[codes].shape, leaf.shape):
                found[index] = codes
    return found


def _is_tiled(whole: Sequence[int], blocks: Sequence[int]) -> bool:
    return len(whole) == len(blocks) and all(
        count and length % count == 0
        for length, count in zip(whole, blocks, strict=True)
    )


def divides_blocks(
    spec: PartitionSpec, shape: Sequence[int], axis_sizes: Mapping[str, int]
) -> bool:
    """Says whether no block lies across two shards.

    Args:
        spec: How the codes are sharded.
        shape: The shape of the scales.
        axis_sizes: The size of each mesh axis.

    Example:
        >>> divides_blocks(PartitionSpec("data"), (12, 1), {"data": 8})
        False
    """
    dims = normalize_spec(spec, len(shape))
    return all(
        count % prod(axis_sizes[axis] for axis in axes) == 0
        for count, axes in zip(shape, dims, strict=True)
    )


def cut_at_blocks(
    param: LeafFacts,
    planned: tuple[PartitionSpec, str],
    blocks_shape: Sequence[int] | None,
    *,
    axis_sizes: Mapping[str, int],
    zero_axes: tuple[str, ...],
) -> tuple[PartitionSpec, str]:
    """Returns a spec of a parameter that cuts no block of its codes, if there is one.

    Args:
        param: The parameter.
        planned: Its spec and the reason for it, regardless of blocks.
        blocks_shape: The shape of the scales of its codes; None if it has none.
        axis_sizes: The size of each mesh axis.
        zero_axes: The axes to split over.

    Returns:
        What was planned, or another spec and its reason.
    """
    spec = planned[0]
    if blocks_shape is None or spec == param.base_spec:
        return planned
    if divides_blocks(spec, blocks_shape, axis_sizes):
        return planned
    spec, reason = plan_leaf_spec(
        replace(param, shape=tuple(blocks_shape)),
        axis_sizes=axis_sizes,
        zero_axes=zero_axes,
        threshold_elems=0,
    )
    if spec == param.base_spec:
        return planned
    return spec, f"{reason} (counted in blocks of its codes)"
