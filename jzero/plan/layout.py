"""Choose the dim of a leaf to shard over the ZeRO axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax.sharding import PartitionSpec

from jzero.plan.leaves import DType, LeafFacts

__all__ = ["local_bytes", "local_shape", "normalize_spec", "plan_leaf_spec"]


def normalize_spec(
    spec: PartitionSpec | Sequence[None | str | Sequence[str]], num_dims: int
) -> tuple[tuple[str, ...], ...]:
    """Returns the mesh axes on each dim, one tuple per dim."""
    raise NotImplementedError


def local_shape(
    shape: Sequence[int], spec: PartitionSpec, axis_sizes: Mapping[str, int]
) -> tuple[int, ...]:
    """Returns the shape of one device's shard."""
    raise NotImplementedError


def local_bytes(
    shape: Sequence[int],
    dtype: DType,
    spec: PartitionSpec,
    axis_sizes: Mapping[str, int],
) -> int:
    """Returns the bytes of one device's shard."""
    raise NotImplementedError


def plan_leaf_spec(
    leaf: LeafFacts,
    *,
    axis_sizes: Mapping[str, int],
    zero_axes: tuple[str, ...],
    threshold_elems: int,
) -> tuple[PartitionSpec, str]:
    """Returns the spec of a leaf at rest and the reason for it."""
    raise NotImplementedError
