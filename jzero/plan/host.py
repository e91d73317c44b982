"""Which leaves of the state rest in host memory.

Lives here: the choice, leaf by leaf. May import: `config`, `leaves.py`, `roles.py`.
Read next: `plan.py`, which puts it into the plan.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from jzero.config import ZeroConfig
from jzero.plan.leaves import LeafFacts, is_extended_dtype
from jzero.plan.roles import RoleInfo

__all__ = ["DEVICE", "HOST", "Resting", "choose_host"]

DEVICE = "device"
HOST = "pinned_host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resting:
    """Where one leaf rests.

    Attributes:
        memory_kind: "device" or "pinned_host".
        reason: Why, where offloading was asked for; else empty.
    """

    memory_kind: str
    reason: str = ""


_ON_DEVICE = Resting(memory_kind=DEVICE)


def choose_host(
    leaves: Sequence[LeafFacts], roles: Sequence[RoleInfo], config: ZeroConfig
) -> tuple[Resting, ...]:
    """Chooses the leaves that rest in host memory.

    Of the roles that `Offload` names, all leaves from the persistence threshold on:
    a copy of less costs more in latency than its bytes are worth. With a `ratio`
    below 1, a parameter and all its optimizer state go together, the last layers
    first: backward finishes their gradients first, so their update can stream while
    the rest of backward computes, and what stays on the device is updated at the end.

    Args:
        leaves: The leaves of all state arguments.
        roles: Their roles.
        config: The settings.

    Returns:
        One record per leaf, in order.
    """
    offload = config.offload
    if offload is None:
        return (_ON_DEVICE,) * len(leaves)
    roles_on_host = {
        role
        for role, place in (
            ("parameter", offload.params),
            ("optimizer", offload.optimizer),
        )
        if place == "host"
    }
    candidates = [
        index
        for index, (leaf, info) in enumerate(zip(leaves, roles, strict=True))
        if info.role in roles_on_host
        and leaf.shape
        and leaf.size_elems >= max(config.persistence_threshold, 1)
        and not is_extended_dtype(leaf.dtype)
    ]
    share = 1.0 if offload.ratio == "auto" else offload.ratio
    chosen = _take_share(leaves, roles, candidates, share)
    in_question = {i for i, info in enumerate(roles) if info.role in roles_on_host}
    resting: list[Resting] = []
    for index, leaf in enumerate(leaves):
        if index in chosen:
            resting.append(Resting(memory_kind=HOST, reason="offloaded"))
        elif index in candidates:
            why = f"on the device: ratio {share:g}"
            resting.append(Resting(memory_kind=DEVICE, reason=why))
        elif index in in_question and leaf.shape:
            why = "on the device: too small to offload"
            resting.append(Resting(memory_kind=DEVICE, reason=why))
        else:
            resting.append(_ON_DEVICE)
    return tuple(resting)


def _take_share(
    leaves: Sequence[LeafFacts],
    roles: Sequence[RoleInfo],
    candidates: Sequence[int],
    share: float,
) -> set[int]:
    """Takes whole groups until the share of the bytes is reached as nearly as can."""
    if share == 1.0:
        return set(candidates)
    groups: dict[int, list[int]] = {}
    for index in candidates:
        owner = roles[index].owner
        groups.setdefault(index if owner is None else owner, []).append(index)
    last_first = sorted(
        groups, key=lambda owner: natural_order(leaves[owner].path), reverse=True
    )
    wanted_bytes = share * sum(leaves[i].size_bytes for i in candidates)
    taken_bytes = 0.0
    chosen: set[int] = set()
    for owner in last_first:
        group_bytes = sum(leaves[i].size_bytes for i in groups[owner])
        # Half of it beyond the mark is nearer than none of it.
        if taken_bytes + group_bytes / 2 <= wanted_bytes:
            chosen.update(groups[owner])
            taken_bytes += group_bytes
    return chosen


def natural_order(path: str) -> tuple[tuple[int, str], ...]:
    """Returns a key by which numbers in a path count as numbers.

    Example:
        >>> sorted(["layer_10", "layer_9"], key=natural_order)
        ['layer_9', 'layer_10']
    """
    parts = re.split(r"(\d+)", path)
    return tuple((int(p), "") if p.isdigit() else (-1, p) for p in parts)
