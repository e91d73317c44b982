"""Which leaves are parameters, which are optimizer state, and whose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jzero.config import ParamsSelector
from jzero.plan.leaves import LeafFacts

__all__ = ["Role", "RoleInfo", "assign_roles"]

Role = Literal["parameter", "optimizer", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleInfo:
    """The role of one leaf.

    Attributes:
        role: "parameter", "optimizer" (also copies such as an EMA) or "other".
        owner: The index of the parameter that the leaf mirrors: same shape, and a
            path that ends like the parameter's. None if there is none.
        why: How the role was found, for the plan's table.
    """

    role: Role
    owner: int | None
    why: str


def assign_roles(
    leaves: Sequence[LeafFacts],
    *,
    arg_names: Sequence[str],
    selector: ParamsSelector | None = None,
) -> tuple[RoleInfo, ...]:
    """Assigns a role to each leaf of the state."""
    raise NotImplementedError
