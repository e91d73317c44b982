"""How the arguments that are not state are split over the batch axes.

Lives here: the search for the batch dim and its checks. May import: `errors`,
`leaves.py`, `layout.py`. Read next: `plan.py`, which shows the result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from jax.sharding import PartitionSpec

from jzero.errors import BatchError, format_problem
from jzero.plan.layout import check_axes, describe_axes
from jzero.plan.leaves import DType, is_key_dtype

__all__ = ["BatchFacts", "BatchLeafPlan", "plan_batch"]

# The shapes of raw key data: threefry2x32, and rbg or unsafe_rbg.
_RAW_KEY_SHAPES = ((2,), (4,))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """One leaf of an argument that is not state.

    Attributes:
        path: The path a person reads, e.g. `batch['x']`.
        arg: The index of the argument that holds the leaf.
        shape: The global shape.
        dtype: The dtype, extended key dtypes included.
        scanned: Whether a loop consumes dim 0, so that the batch dim is dim 1.
        is_key: Whether the caller knows the leaf to be a random key. Typed keys
            and raw uint32 key data are recognised without it.
    """

    path: str
    arg: int
    shape: tuple[int, ...]
    dtype: DType
    scanned: bool = False
    is_key: bool = False

    @property
    def batch_dim(self) -> int:
        """The dim that the batch axes split, if the leaf is batch."""
        return 1 if self.scanned else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLeafPlan:
    """Where one leaf of an argument that is not state goes, and why.

    Attributes:
        path: The path a person reads.
        arg: The index of the argument that holds the leaf.
        shape: The global shape.
        dtype: The dtype.
        spec: The batch axes on the batch dim, or nothing for a replicated leaf.
        reason: Why it is so.
    """

    path: str
    arg: int
    shape: tuple[int, ...]
    dtype: DType
    spec: PartitionSpec
    reason: str


def plan_batch(
    leaves: Sequence[BatchFacts],
    *,
    axis_sizes: Mapping[str, int],
    batch_axes: tuple[str, ...],
    batch_args: Collection[int] | None = None,
) -> tuple[BatchLeafPlan, ...]:
    """Splits the leaves that share a batch dim, and replicates the rest.

    Scalars and random keys are replicated. All other leaves must agree on the
    size of their batch dim: dim 0, or dim 1 where a loop consumes dim 0 (gradient
    accumulation over micro-batches). A dim of 1 beside larger ones broadcasts
    and stays whole.

    Args:
        leaves: The leaves of all arguments that are not state.
        axis_sizes: The size of each mesh axis.
        batch_axes: The mesh axes that split the batch.
        batch_args: The arguments that the user named as batch (`batch_argnums`).
            The others are replicated. None: every argument is looked at.

    Shapes:
        leaf: global (B, ...), or (S, B, ...) if scanned; local: B / num_shards.

    Returns:
        One record per leaf, in the given order.

    Raises:
        BatchError: The leaves disagree on the batch size, it does not divide by
            the batch axes, or the named arguments hold no array.
        MeshError: The mesh lacks a batch axis.

    Example:
        >>> x = BatchFacts(path="x", arg=1, shape=(16, 3), dtype=np.dtype("f4"))
        >>> lr = BatchFacts(path="lr", arg=2, shape=(), dtype=np.dtype("f4"))
        >>> plans = plan_batch([x, lr], axis_sizes={"data": 8}, batch_axes=("data",))
        >>> [plan.reason for plan in plans]
        ['dim 0 of 16 over data=8', 'a scalar']
    """
    check_axes(batch_axes, axis_sizes, setting="batch_axis")
    whole = [_why_whole(leaf, batch_args) for leaf in leaves]
    candidates = [leaf for leaf, why in zip(leaves, whole, strict=True) if why is None]
    if batch_args and not candidates:
        raise BatchError(
            format_problem(
                "The arguments named by batch_argnums hold no array with a batch dim:",
                [(leaf.path, f"{leaf.dtype}{list(leaf.shape)}") for leaf in leaves],
                "name the arguments that hold the batch, or leave batch_argnums out.",
            )
        )
    size = _common_size(candidates, is_named=batch_args is not None)
    _check_divides(candidates, size, axis_sizes, batch_axes)
    entry = batch_axes[0] if len(batch_axes) == 1 else batch_axes
    plans: list[BatchLeafPlan] = []
    for leaf, why in zip(leaves, whole, strict=True):
        spec = PartitionSpec()
        if why is None and leaf.shape[leaf.batch_dim] != size:
            why = f"dim {leaf.batch_dim} of 1 broadcasts over the batch"
        if why is None:
            spec = PartitionSpec(*[None] * leaf.batch_dim, entry)
            axes = describe_axes(batch_axes, axis_sizes)
            why = f"dim {leaf.batch_dim} of {size} over {axes}"
        plans.append(
            BatchLeafPlan(
                path=leaf.path,
                arg=leaf.arg,
                shape=leaf.shape,
                dtype=leaf.dtype,
                spec=spec,
                reason=why,
            )
        )
    return tuple(plans)


def _why_whole(leaf: BatchFacts, batch_args: Collection[int] | None) -> str | None:
    """Returns why a leaf cannot be batch; None if it can."""
    if batch_args is not None and leaf.arg not in batch_args:
        return "not named by batch_argnums"
    is_raw_key = leaf.dtype == np.uint32 and leaf.shape in _RAW_KEY_SHAPES
    if leaf.is_key or is_raw_key or is_key_dtype(leaf.dtype):
        return "a random key"
    if not leaf.shape:
        return "a scalar"
    if len(leaf.shape) <= leaf.batch_dim:
        return "one number per turn of a loop"
    return None


def _common_size(candidates: Sequence[BatchFacts], *, is_named: bool) -> int:
    """Returns the batch size that all candidates share; 1 if there are none."""
    sizes = {leaf.shape[leaf.batch_dim] for leaf in candidates}
    if len(sizes) > 1:
        sizes.discard(1)
    if len(sizes) <= 1:
        return sizes.pop() if sizes else 1
    split = "move what has no batch dim to an argument of its own"
    raise BatchError(
        format_problem(
            "These arrays could be the batch, but their batch dims differ:",
            [
                (
                    leaf.path,
                    f"{leaf.shape}: dim {leaf.batch_dim} of "
                    f"{leaf.shape[leaf.batch_dim]}",
                )
                for leaf in candidates
            ],
            f"{split}."
            if is_named
            else "pass batch_argnums=..., the positions of the arguments that hold "
            f"the batch (the others are replicated); within one argument, {split}.",
        )
    )


def _check_divides(
    candidates: Sequence[BatchFacts],
    size: int,
    axis_sizes: Mapping[str, int],
    batch_axes: tuple[str, ...],
) -> None:
    num_shards = prod(axis_sizes[axis] for axis in batch_axes)
    if not candidates or size % num_shards == 0:
        return
    below = size // num_shards * num_shards
    nearest = [str(near) for near in (below, below + num_shards) if near]
    axes = describe_axes(batch_axes, axis_sizes)
    raise BatchError(
        format_problem(
            f"A batch of {size} does not divide over {num_shards} devices ({axes}):",
            [
                (leaf.path, f"{leaf.shape}: dim {leaf.batch_dim} of {size}")
                for leaf in candidates
                if leaf.shape[leaf.batch_dim] == size
            ],
            f"use a batch of {' or '.join(nearest)}: drop the last, short batch, or "
            "pad it and mask the padding in the loss.",
        )
    )
