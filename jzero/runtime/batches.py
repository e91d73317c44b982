"""Placing batches: a process's rows become global arrays.

May import: plan, runtime. Read next: `jzero/step.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jzero.errors import BatchError, format_problem
from jzero.plan.batch import BatchFacts, plan_batch
from jzero.plan.leaves import describe_tree
from jzero.plan.plan import Plan
from jzero.runtime.match import is_key_or_scalar
from jzero.runtime.mesh import axis_sizes
from jzero.runtime.placement import is_placed, place_leaf, place_local
from jzero.runtime.program import Program
from jzero.runtime.settings import Settings
from jzero.runtime.tracing import abstract


def shape_of(leaf: Any) -> Any:
    """What distinguishes one compiled shape from another."""
    return getattr(leaf, "shape", None), getattr(leaf, "dtype", type(leaf))


def place_batch(batch: Any, settings: Settings, plans: Sequence[Plan]) -> Any:
    """Makes global arrays of one process's part of a batch.

    Args:
      batch: a pytree of arrays.
      settings: mesh and config.
      plans: plans of calls seen so far; they know which leading dim is scanned.

    Returns:
      The same tree of global arrays.

    Raises:
      BatchError: the global batch does not divide by the batch axes.
    """
    leaves, treedef = jax.tree.flatten(batch)
    num_processes = jax.process_count()
    structs = [_global_struct(abstract(x), x, num_processes) for x in leaves]
    specs = _seen_specs(structs, plans)
    if specs is None:
        facts = [
            BatchFacts(
                path=leaf.path,
                arg=0,
                shape=leaf.shape,
                dtype=leaf.dtype,
                is_key=is_key_or_scalar(struct) and bool(leaf.shape),
            )
            for leaf, struct in zip(
                describe_tree(treedef.unflatten(structs), arg=0, name="batch"),
                structs,
                strict=True,
            )
        ]
        planned = plan_batch(
            facts,
            axis_sizes=dict(axis_sizes(settings.mesh)),
            batch_axes=settings.config.batch_axes,
            batch_args=None,
        )
        specs = [p.spec for p in planned]
    placed = []
    for leaf, spec in zip(leaves, specs, strict=True):
        sharding = NamedSharding(settings.mesh, spec)
        is_whole = not any(spec)
        placed.append(
            place_leaf(leaf, sharding) if is_whole else place_local(leaf, sharding)
        )
    return treedef.unflatten(placed)


def _global_struct(
    struct: jax.ShapeDtypeStruct, leaf: Any, num_processes: int
) -> jax.ShapeDtypeStruct:
    is_local = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
    if num_processes == 1 or not is_local or is_key_or_scalar(struct):
        return struct
    shape = (struct.shape[0] * num_processes, *struct.shape[1:])
    return jax.ShapeDtypeStruct(shape, struct.dtype)


def _seen_specs(
    structs: Sequence[jax.ShapeDtypeStruct], plans: Sequence[Plan]
) -> list[PartitionSpec] | None:
    """Specs of a call that took arrays of these very shapes, if there was one."""
    wanted = [(tuple(s.shape), s.dtype) for s in structs]
    for plan in plans:
        shapes = [(p.shape, p.dtype) for p in plan.batch]
        for start in range(len(shapes) - len(wanted) + 1):
            if wanted and shapes[start : start + len(wanted)] == wanted:
                chosen = plan.batch[start : start + len(wanted)]
                return [p.spec for p in chosen]
    return None


def place_data(data: list[Any], program: Program) -> list[Any]:
    """Moves the data to where the program wants it.

    Returns the very list if all of it lies there. Among several processes each
    holds only its rows and must say so.

    Raises:
      BatchError: a process-local batch was passed among several processes.
    """
    plans = program.plan.batch
    if jax.process_count() > 1:
        local = [
            (p.path, f"{p.dtype}{list(p.shape)} lies on this process only")
            for leaf, p in zip(data, plans, strict=True)
            if any(p.spec)
            and not (isinstance(leaf, jax.Array) and not leaf.is_fully_addressable)
        ]
        if local:
            raise BatchError(
                format_problem(
                    f"a batch among {jax.process_count()} processes must be made of "
                    "global arrays",
                    local,
                    "pass step.shard_batch(batch), with each process's own rows",
                )
            )
    pairs = list(zip(data, program.other_shardings, strict=True))
    if all(is_placed(leaf, target) for leaf, target in pairs):
        return data
    # Host arrays too: JAX would compile once more for a batch that lies elsewhere.
    return [
        leaf if is_placed(leaf, target) else _move(leaf, target)
        for leaf, target in pairs
    ]


def _move(leaf: Any, target: NamedSharding) -> Any:
    if jax.process_count() > 1 and target.is_fully_replicated:
        return place_leaf(leaf, target) if hasattr(leaf, "dtype") else leaf
    return jax.device_put(leaf, target)
