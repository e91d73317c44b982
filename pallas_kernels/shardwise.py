"""Functions that run on the shards of their arguments, each device on its own.

Lives here: `shardwise`, a thin layer over `custom_partitioning`. The partitioner
would gather around a kernel, and around the blocks of a quantized array, since it
cannot see that every block lies within one shard; the rule given here says so. May
import: jax alone. Read next: `fused.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import (
    ArrayMapping,
    CompoundFactor,
    SdyShardingRule,
    custom_partitioning,
)
from jax.sharding import NamedSharding, PartitionSpec

__all__ = ["WHOLE", "Dim", "Dims", "Place", "ShardRule", "shardwise"]


@dataclass(frozen=True, slots=True)
class Dim:
    """One dim of an operand or result.

    Attributes:
        name: Dims of one name are cut alike. Letters, digits and underscores.
        num_parts: Into how many parts it can be cut at most, the same for all dims of
            the name: a dim of 512 with blocks of 256 has two.
    """

    name: str
    num_parts: int


Dims = tuple[Dim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a shard lies.

    Attributes:
        cuts: Name of a dim -> (number of pieces, which of them this is). Names that
            are missing are whole.
    """

    cuts: dict[str, tuple[int, Any]]

    def starts(self, dims: Dims, local_shape: Sequence[int]) -> list[Any]:
        """Returns, per dim, the index in the whole array where the shard starts."""
        pieces = [self.cuts.get(dim.name, (1, 0))[1] for dim in dims]
        return [
            jnp.asarray(piece).astype(jnp.uint32) * jnp.uint32(length)
            for piece, length in zip(pieces, local_shape, strict=True)
        ]

    def whole_shape(self, dims: Dims, local_shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the whole array's shape."""
        return tuple(
            length * self.cuts.get(dim.name, (1, 0))[0]
            for dim, length in zip(dims, local_shape, strict=True)
        )


WHOLE = Place(cuts={})

Local = Callable[..., Sequence[jax.Array]]


def shardwise(
    local: Local,
    arrays: Sequence[jax.Array],
    *,
    operands: Sequence[Dims],
    results: Sequence[Dims],
) -> list[jax.Array]:
    """Computes results of whole arrays with a function that works on shards.

    Under a mesh every device runs `local` on its own shards, and nothing is moved
    unless operands that hang together lie differently, or a part would have to be
    cut; then those are made whole.

    Args:
        local: `(place, *shards) -> shards`. With whole arrays and `WHOLE` it computes
            what the result shall be.
        arrays: The operands.
        operands: The dims of each.
        results: The dims of each result.

    Returns:
        The results, whole or sharded as the operands are.

    Example:
        >>> rows = (Dim("rows", 4),)
        >>> shardwise(
        ...     lambda place, x: [2 * x], [jnp.ones(4)], operands=[rows], results=[rows]
        ... )
        [Array([2., 2., 2., 2.], dtype=float32)]
    """

    def on_whole(*whole: jax.Array) -> list[jax.Array]:
        return list(local(WHOLE, *whole))

    def specs(mesh: Any, arg_shapes: Any, result_shapes: Any) -> Any:
        shapes = (*arg_shapes, *result_shapes)
        axes = _axes_of_names((*operands, *results), shapes, mesh)

        def place_all(arrays: Sequence[Dims]) -> list[NamedSharding]:
            return [
                NamedSharding(mesh, PartitionSpec(*(axes.get(d.name) for d in dims)))
                for dims in arrays
            ]

        return axes, place_all(operands), place_all(results)

    def infer(mesh: Any, arg_shapes: Any, result_shapes: Any) -> Any:
        return specs(mesh, arg_shapes, result_shapes)[2]

    def partition(mesh: Any, arg_shapes: Any, result_shapes: Any) -> Any:
        axes, ins, outs = specs(mesh, arg_shapes, result_shapes)

        def on_shards(*shards: jax.Array) -> list[jax.Array]:
            cuts = {
                name: (_size(mesh, found), jax.lax.axis_index(found))
                for name, found in axes.items()
            }
            return list(local(Place(cuts=cuts), *shards))

        return mesh, on_shards, outs, tuple(ins)

    wrapped = custom_partitioning(on_whole)
    wrapped.def_partition(
        partition=partition,
        infer_sharding_from_operands=infer,
        sharding_rule=ShardRule(tuple(operands), tuple(results)),
    )
    return list(wrapped(*arrays))


def _size(mesh: Any, axes: Sequence[str]) -> int:
    return prod(mesh.shape[axis] for axis in axes)


def _axes_of_names(
    arrays: Sequence[Dims], shapes: Sequence[Any], mesh: Any
) -> dict[str, tuple[str, ...]]:
    """Returns the mesh axes over which each name is cut, where one is."""
    found: dict[str, tuple[str, ...]] = {}
    for dims, shape in zip(arrays, shapes, strict=True):
        taken = getattr(shape.sharding, "spec", None) or ()
        for dim, entry in zip(dims, taken, strict=False):
            if entry is None or dim.name in found:
                continue
            axes = (entry,) if isinstance(entry, str) else tuple(entry)
            if dim.num_parts % _size(mesh, axes) == 0:
                found[dim.name] = axes
    return found


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ShardRule:
    """The sharding rule of a shardwise equation, written for the mesh it meets.

    Attributes:
        operands: The dims of each operand.
        results: The dims of each result.
    """

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]

    def __call__(self, mesh: Any, operands: Any, results: Any) -> SdyShardingRule:
        """Writes the rule for Shardy: a dim of blocks is a compound factor."""
        axis_sizes = tuple(mesh.shape.values())
        sizes: dict[str, int] = {}
        alone: set[str] = set()
        whole: dict[str, None] = {}  # in order of appearance, as Shardy wants them

        def mapping(dims: Dims, array: Any) -> ArrayMapping:
            factors: list[Any] = []
            for dim, length in zip(dims, array.shape, strict=True):
                # Shardy would cut a mesh axis in two to fit it to the parts, which
                # JAX's shardings cannot say.
                can_cut = all(dim.num_parts % size == 0 for size in axis_sizes)
                rest = f"{dim.name}_by{length // dim.num_parts}"
                if length == dim.num_parts:
                    alone.add(dim.name)
                    factors.append(dim.name)
                    if not can_cut:
                        whole[dim.name] = None
                elif dim.num_parts == 1 or not can_cut:
                    name = f"{dim.name}_of{length}"
                    alone.add(name)
                    whole[name] = None
                    factors.append(name)
                else:
                    sizes[dim.name], sizes[rest] = (
                        dim.num_parts,
                        length // dim.num_parts,
                    )
                    factors.append(CompoundFactor(dim.name, rest))
            return ArrayMapping(*factors)

        ins = tuple(map(mapping, self.operands, operands))
        outs = tuple(map(mapping, self.results, results))
        inner: dict[str, Any] = {n: k for n, k in sizes.items() if n not in alone}
        return SdyShardingRule(
            ins,
            outs,
            need_replication_factors=tuple(whole),
            **inner,
        )
