"""The same step by `jax.jit` with shardings on its arguments, and nothing else.

Lives here: `lower_annotated`, the baseline of who writes no annotation into a model.
Read next: `careful.py`, the baseline of who does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

__all__ = ["lower_annotated", "lower_placed", "place_state"]


def lower_annotated(
    step: Callable[..., Any], state: Any, batch: Any, *, stage: int, mesh: Mesh
) -> jax.stages.Lowered:
    """Lowers a step whose arguments and results are sharded by the stage.

    Args:
        step: `(state, batch) -> (state, metrics)` on a Flax `TrainState`.
        state: Its shapes.
        batch: Its shapes; dim 0 is split over the mesh.
        stage: 0 replicates the state, 1 and 2 shard the optimizer's, 3 all of it.
        mesh: One axis.

    Returns:
        The lowered step; the state is donated.
    """
    return lower_placed(step, state, batch, place_state(state, stage, mesh), mesh)


def lower_placed(
    step: Callable[..., Any], state: Any, batch: Any, state_placed: Any, mesh: Mesh
) -> jax.stages.Lowered:
    """Lowers a step for a state that lies as given, rows split over the devices."""
    batch_placed = jax.tree.map(
        lambda leaf: NamedSharding(mesh, PartitionSpec(mesh.axis_names[0])), batch
    )
    return jax.jit(
        step,
        in_shardings=(state_placed, batch_placed),
        out_shardings=(state_placed, NamedSharding(mesh, PartitionSpec())),
        donate_argnums=0,
    ).lower(state, batch)


def place_state(state: Any, stage: int, mesh: Mesh) -> Any:
    """Returns the shardings of a `TrainState` by the stage, leaf by leaf."""

    def placed(tree: Any, is_sharded: bool) -> Any:
        return jax.tree.map(
            lambda leaf: NamedSharding(
                mesh, _spec(leaf.shape, mesh) if is_sharded else PartitionSpec()
            ),
            tree,
        )

    return placed(state, False).replace(
        params=placed(state.params, stage == 3),
        opt_state=placed(state.opt_state, stage >= 1),
    )


def _spec(shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Shards the longest dim that divides, of leaves of 1024 elements and more.

    The first dim of stacked layers, which the scan runs over, is left alone: it is
    shorter than the others in every case here.
    """
    dims = [dim for dim in range(len(shape)) if shape[dim] % mesh.size == 0]
    if math.prod(shape) < 1024 or not dims:
        return PartitionSpec()
    entries: list[str | None] = [None] * len(shape)
    entries[max(dims, key=lambda dim: shape[dim])] = mesh.axis_names[0]
    return PartitionSpec(*entries)
