"""How the arguments that are not state are split over the batch axes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from jax.sharding import PartitionSpec

from jzero.plan.leaves import DType

__all__ = ["BatchFacts", "BatchLeafPlan", "plan_batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """One leaf of an argument that is not state.

    Attributes:
        path: The path a person reads, e.g. `batch['x']`.
        arg: The index of the argument that holds the leaf.
        shape: The global shape.
        dtype: The dtype, extended key dtypes included.
        scanned: Whether a loop consumes dim 0, so that the batch dim is dim 1.
        is_key: Whether the leaf is a random key (typed, or raw uint32 data).
    """

    path: str
    arg: int
    shape: tuple[int, ...]
    dtype: DType
    scanned: bool = False
    is_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLeafPlan:
    """Where one leaf of an argument that is not state goes, and why."""

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
    """Plans the spec of each leaf, in the given order.

    Args:
        leaves: The leaves of all arguments that are not state.
        axis_sizes: The size of each mesh axis.
        batch_axes: The mesh axes that split the batch.
        batch_args: The arguments the user named as batch (`batch_argnums`). None
            means that they are found by their common size.
    """
    raise NotImplementedError
