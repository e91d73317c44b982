"""The plan: one frozen value that says where everything goes, and why.

Lives here: `Plan` and its records, and `plan_state`, which makes the state's part
out of leaves and roles. May import: everything else in `plan/`. Read next:
`table.py` for how it is shown, `jzero/runtime/settings.py` for who makes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, get_args

from jax.sharding import PartitionSpec
from rich.console import RenderableType

from jzero.config import ZeroConfig
from jzero.plan.batch import BatchLeafPlan
from jzero.plan.blocks import cut_at_blocks, divides_blocks, find_codes_of_scales
from jzero.plan.host import HOST, choose_host
from jzero.plan.layout import (
    check_axes,
    local_bytes,
    normalize_spec,
    plan_leaf_spec,
    spec_axes,
)
from jzero.plan.leaves import DType, LeafFacts
from jzero.plan.roles import Role, RoleInfo
from jzero.plan.stages import StagePlacement, check_stage
from jzero.plan.table import build_table, plan_to_dict, render_text

__all__ = ["BatchLeafPlan", "LeafPlan", "Plan", "RoleTotal", "plan_state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafPlan:
    """Where one leaf of the state lives at rest, and why.

    Attributes:
        path: The path a person reads, e.g. `state.params['mlp']['kernel']`.
        arg: The index of the argument that holds the leaf.
        role: "parameter", "optimizer" or "other".
        owner_path: The path of the parameter that the leaf mirrors, if any.
        shape: The global shape.
        dtype: The dtype.
        spec: The spec at rest.
        base_spec: The part of it that is the user's own; what a use of the leaf
            sees after the gather.
        memory_kind: The kind of memory it rests in: "device" or "pinned_host".
        local_bytes: Bytes at rest in that memory for each device.
        global_bytes: Bytes of the whole array.
        reason: Why it is so.
    """

    path: str
    arg: int
    role: Role
    owner_path: str | None
    shape: tuple[int, ...]
    dtype: DType
    spec: PartitionSpec
    base_spec: PartitionSpec
    memory_kind: str = "device"
    local_bytes: int
    global_bytes: int
    reason: str

    @property
    def size_elems(self) -> int:
        """The number of elements of the whole array."""
        return prod(self.shape)

    @property
    def is_sharded(self) -> bool:
        """Whether jzero added ZeRO axes to the user's own spec."""
        return self.spec != self.base_spec

    @property
    def is_on_host(self) -> bool:
        """Whether it rests in host memory."""
        return self.memory_kind == HOST


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTotal:
    """The bytes of all leaves of one role.

    Attributes:
        role: The role.
        num_leaves: How many leaves have it.
        global_bytes: Their bytes as whole arrays.
        local_bytes: Their bytes at rest on each device.
        host_bytes: Their bytes at rest in host memory, for each device.
    """

    role: Role
    num_leaves: int
    global_bytes: int
    local_bytes: int
    host_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where everything goes: frozen, hashable, and printable.

    Attributes:
        stage: The ZeRO stage, for show; what it means is in `placement`.
        placement: What the stage shards and how it communicates.
        axis_sizes: Name and size of each mesh axis.
        zero_axes: The axes over which state is sharded.
        batch_axes: The axes that split the batch.
        config: The settings.
        state: One record per leaf of the state arguments, in flattening order.
        batch: One record per leaf of the other arguments.
        notes: What else is worth knowing, such as which arguments are state.
        num_micro_batches: How often the loops of a step run forward and backward;
            known once a step was traced, 1 before.
    """

    stage: int
    placement: StagePlacement
    axis_sizes: tuple[tuple[str, int], ...]
    zero_axes: tuple[str, ...]
    batch_axes: tuple[str, ...]
    config: ZeroConfig
    state: tuple[LeafPlan, ...]
    batch: tuple[BatchLeafPlan, ...] = ()
    notes: tuple[str, ...] = ()
    num_micro_batches: int = 1

    @property
    def totals(self) -> tuple[RoleTotal, ...]:
        """Bytes per role, in the order parameter, optimizer, other."""
        totals: list[RoleTotal] = []
        for role in get_args(Role):
            leaves = [leaf for leaf in self.state if leaf.role == role]
            totals.append(
                RoleTotal(
                    role=role,
                    num_leaves=len(leaves),
                    global_bytes=sum(leaf.global_bytes for leaf in leaves),
                    local_bytes=sum(x.local_bytes for x in leaves if not x.is_on_host),
                    host_bytes=sum(x.local_bytes for x in leaves if x.is_on_host),
                )
            )
        return tuple(totals)

    @property
    def local_bytes(self) -> int:
        """Bytes of state at rest on each device."""
        return sum(x.local_bytes for x in self.state if not x.is_on_host)

    @property
    def host_bytes(self) -> int:
        """Bytes of state at rest in host memory, for each device."""
        return sum(x.local_bytes for x in self.state if x.is_on_host)

    @property
    def global_bytes(self) -> int:
        """Bytes of the whole state."""
        return sum(leaf.global_bytes for leaf in self.state)

    @property
    def replicated_large(self) -> tuple[LeafPlan, ...]:
        """Leaves that stayed whole although at or above the threshold.

        Empty where nothing is meant to be sharded: stage 0, or ZeRO axes of size
        1. Parameters kept whole by `replicate_params` are not listed.
        """
        sizes = dict(self.axis_sizes)
        num_shards = prod(sizes[axis] for axis in self.zero_axes)
        if not self.placement.is_sharded or num_shards == 1:
            return ()

        def is_listed(leaf: LeafPlan) -> bool:
            if leaf.role == "parameter" and not self.placement.params:
                return False
            if not leaf.shape or not leaf.size_elems:
                return False
            if leaf.size_elems < self.config.persistence_threshold:
                return False
            return not set(spec_axes(leaf.spec)) & set(self.zero_axes)

        return tuple(leaf for leaf in self.state if is_listed(leaf))

    def is_sharded(self, index: int) -> bool:
        """Says whether jzero split leaf `index` of the state over the ZeRO axes."""
        return self.state[index].is_sharded

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as plain dicts, lists, texts and numbers, as for JSON."""
        return plan_to_dict(self)

    def __rich__(self) -> RenderableType:
        """Shows the plan in colour with `rich.print(plan)`."""
        return build_table(self)

    def __str__(self) -> str:
        """Writes the plan as plain text, one line per leaf."""
        return render_text(self)


def plan_state(
    leaves: Sequence[LeafFacts],
    roles: Sequence[RoleInfo],
    *,
    stage: int,
    config: ZeroConfig,
    axis_sizes: Mapping[str, int],
) -> tuple[LeafPlan, ...]:
    """Plans where each leaf of the state lives at rest.

    Parameters and optimizer state are sharded as the stage says. What mirrors a
    parameter takes the parameter's spec, so that the update needs no movement; it
    also takes the user's own axes from it, unless it brings its own. A leaf of
    another shape (adafactor's factors) is planned for itself, except for the scales
    of 8-bit codes, which lie as the codes do. Everything else stays as the user
    placed it.

    Args:
        leaves: The leaves of all state arguments.
        roles: Their roles, from `assign_roles`.
        stage: The ZeRO stage.
        config: The settings.
        axis_sizes: The size of each mesh axis.

    Returns:
        One record per leaf, in order.

    Raises:
        StageError: There is no such stage.
        ConfigError: A setting contradicts the stage.
        MeshError: The mesh lacks an axis that the settings or a leaf names.
    """
    placement = check_stage(config, stage)
    check_axes(config.axes, axis_sizes, setting="axis")
    check_axes(config.batch_axes, axis_sizes, setting="batch_axis")

    def plan_sharded(leaf: LeafFacts) -> tuple[PartitionSpec, str]:
        return plan_leaf_spec(
            leaf,
            axis_sizes=axis_sizes,
            zero_axes=config.axes,
            threshold_elems=config.persistence_threshold,
        )

    codes_of = find_codes_of_scales(leaves)
    blocks_of = {roles[c].owner: leaves[s].shape for s, c in codes_of.items()}

    # Of a parameter kept whole, the mirrors are sharded all the same.
    sharded = {
        index: cut_at_blocks(
            leaf,
            plan_sharded(leaf),
            blocks_of.get(index),
            axis_sizes=axis_sizes,
            zero_axes=config.axes,
        )
        for index, (leaf, info) in enumerate(zip(leaves, roles, strict=True))
        if info.role == "parameter"
    }

    def plan_one(index: int) -> tuple[PartitionSpec, PartitionSpec, str]:
        """Returns spec, base spec and reason of one leaf."""
        leaf, info = leaves[index], roles[index]
        if info.role == "other":
            return leaf.base_spec, leaf.base_spec, info.why
        if index in codes_of:
            spec, base, reason = plan_one(codes_of[index])
            if divides_blocks(spec, leaf.shape, axis_sizes):
                return spec, base, "blocks of its codes" if spec != base else reason
            return PartitionSpec(), PartitionSpec(), "blocks lie across shards"
        is_sharded = (
            placement.params if info.role == "parameter" else placement.optimizer
        )
        base, owner = leaf.base_spec, info.owner
        is_alike = owner is not None and _is_placed_alike(leaf, leaves[owner])
        if owner is not None and is_alike:
            base = leaves[owner].base_spec
        if not is_sharded:
            kept = "by replicate_params" if placement.is_sharded else "at this stage"
            return base, base, f"kept whole {kept}"
        if info.role == "parameter":
            return sharded[index][0], base, sharded[index][1]
        if owner is not None and is_alike:
            return sharded[owner][0], base, "as its parameter"
        spec, reason = plan_sharded(leaf)
        return spec, base, reason

    on_host = choose_host(leaves, roles, config)
    plans: list[LeafPlan] = []
    for index, (leaf, info) in enumerate(zip(leaves, roles, strict=True)):
        spec, base_spec, reason = plan_one(index)
        if on_host[index].reason:
            reason = f"{reason}; {on_host[index].reason}"
        plans.append(
            LeafPlan(
                path=leaf.path,
                arg=leaf.arg,
                role=info.role,
                owner_path=None if info.owner is None else leaves[info.owner].path,
                shape=leaf.shape,
                dtype=leaf.dtype,
                spec=spec,
                base_spec=base_spec,
                memory_kind=on_host[index].memory_kind,
                local_bytes=local_bytes(leaf.shape, leaf.dtype, spec, axis_sizes),
                global_bytes=leaf.size_bytes,
                reason=reason,
            )
        )
    return tuple(plans)


def _is_placed_alike(leaf: LeafFacts, owner: LeafFacts) -> bool:
    """Whether a mirror brings no axes of its own, or the same as its parameter."""
    own = normalize_spec(leaf.base_spec, len(leaf.shape))
    return not any(own) or own == normalize_spec(owner.base_spec, len(owner.shape))
