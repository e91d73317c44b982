"""What a step was made with, and the plan of its state that follows from it.

Lives here: `Settings`, `Known` and `plan_for_state`, which needs no trace and so
serves `init` before any batch was seen. May import: plan, runtime.mesh. Read
next: `program.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from jzero.config import ZeroConfig
from jzero.errors import ConfigError
from jzero.plan.leaves import describe_tree
from jzero.plan.plan import Plan, plan_state
from jzero.plan.roles import assign_roles
from jzero.plan.stages import placement_for
from jzero.runtime.mesh import axis_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a step was made with.

    Attributes:
      stage: ZeRO stage.
      mesh: devices, Auto axes.
      config: everything else.
      state_argnums: state arguments named by the user, or None.
      batch_argnums: batch arguments named by the user, or None.
    """

    stage: int
    mesh: Mesh
    config: ZeroConfig
    state_argnums: tuple[int, ...] | None = None
    batch_argnums: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of one state leaf besides its shape and path.

    Attributes:
      shape: global shape.
      base_spec: the axes on which the user sharded it.
      is_stacked: its leading dim stacks the layers of a scan.
    """

    shape: tuple[int, ...]
    base_spec: PartitionSpec = PartitionSpec()
    is_stacked: bool = False


def plan_for_state(
    named_args: Sequence[tuple[str, Any]],
    known: Sequence[Known],
    settings: Settings,
    *,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Plans the state alone.

    Args:
      named_args: (name, pytree of shapes) of each state argument.
      known: facts per leaf, in flat order over all arguments.
      settings: stage, mesh and config.
      notes: lines to show with the plan.

    Returns:
      A plan without batch leaves.

    Raises:
      ConfigError: the ratio of offloading has still to be found.
    """
    offload = settings.config.offload
    if offload is not None and offload.ratio == "auto":
        raise ConfigError(
            'Offload(ratio="auto") must be fitted to a batch before a state is made.\n'
            "Remedy: step = jzero.fit_offload(step, *arguments), with the arguments of "
            "a call as arrays or jax.ShapeDtypeStructs."
        )
    leaves = []
    start = 0
    for arg, (name, tree) in enumerate(named_args):
        facts = known[start : start + len(jax.tree.leaves(tree))]
        start += len(facts)
        leaves += describe_tree(
            tree,
            arg=arg,
            name=name,
            base_specs=[k.base_spec for k in facts],
            stacked_dims=[(0,) if k.is_stacked else () for k in facts],
        )
    config = settings.config
    roles = assign_roles(
        leaves, arg_names=[n for n, _ in named_args], selector=config.params
    )
    sizes = axis_sizes(settings.mesh)
    return Plan(
        stage=settings.stage,
        placement=placement_for(
            settings.stage, replicate_params=config.replicate_params
        ),
        axis_sizes=sizes,
        zero_axes=config.axes,
        batch_axes=config.batch_axes,
        config=config,
        state=plan_state(
            leaves, roles, stage=settings.stage, config=config, axis_sizes=dict(sizes)
        ),
        notes=notes,
    )
