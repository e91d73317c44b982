"""The plan: one frozen value that says where everything goes, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import PartitionSpec

from jzero.config import ZeroConfig
from jzero.plan.batch import BatchLeafPlan
from jzero.plan.leaves import DType, LeafFacts
from jzero.plan.roles import Role, RoleInfo
from jzero.plan.stages import StagePlacement

__all__ = ["BatchLeafPlan", "LeafPlan", "Plan", "RoleTotal", "plan_state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafPlan:
    """Where one leaf of the state lives at rest, and why."""

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
    def is_sharded(self) -> bool:
        """Whether the ZeRO axes were added to the user's own spec."""
        return self.spec != self.base_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTotal:
    """The bytes of all leaves of one role."""

    role: Role
    num_leaves: int
    global_bytes: int
    local_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where everything goes: frozen, hashable, printable."""

    stage: int
    placement: StagePlacement
    axis_sizes: tuple[tuple[str, int], ...]
    zero_axes: tuple[str, ...]
    batch_axes: tuple[str, ...]
    config: ZeroConfig
    state: tuple[LeafPlan, ...]
    batch: tuple[BatchLeafPlan, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def totals(self) -> tuple[RoleTotal, ...]:
        """Bytes per role, in the order parameter, optimizer, other."""
        raise NotImplementedError

    @property
    def local_bytes(self) -> int:
        """Bytes of state at rest on each device."""
        return sum(leaf.local_bytes for leaf in self.state)

    @property
    def global_bytes(self) -> int:
        """Bytes of the whole state."""
        return sum(leaf.global_bytes for leaf in self.state)

    @property
    def replicated_large(self) -> tuple[LeafPlan, ...]:
        """Leaves that stayed whole although above the persistence threshold."""
        raise NotImplementedError

    def is_sharded(self, index: int) -> bool:
        """Says whether leaf `index` of the state is split over the ZeRO axes."""
        return self.state[index].is_sharded

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as plain dicts, lists, texts and numbers."""
        raise NotImplementedError


def plan_state(
    leaves: Sequence[LeafFacts],
    roles: Sequence[RoleInfo],
    *,
    stage: int,
    config: ZeroConfig,
    axis_sizes: Mapping[str, int],
) -> tuple[LeafPlan, ...]:
    """Plans where each leaf of the state lives at rest."""
    raise NotImplementedError
