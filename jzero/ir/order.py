"""Putting equations into an order in which each comes after what it reads.

Lives here: `in_order`. A pass that makes one computation wait for another may have to
move equations behind others. May import: compat. Read next: `edit.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from jzero.compat.jaxpr import JaxprEqn, Var, is_var
from jzero.errors import InternalError

__all__ = ["in_order"]


def in_order(eqns: Sequence[JaxprEqn]) -> list[JaxprEqn]:
    """Returns the equations sorted so that every variable is made before it is read.

    As near to the given order as that allows. Equations with effects keep their order
    among themselves.

    Raises:
      InternalError: the equations wait for each other in a circle.
    """
    maker: dict[Var, int] = {}
    for index, eqn in enumerate(eqns):
        maker.update(dict.fromkeys(eqn.outvars, index))
    followers: list[list[int]] = [[] for _ in eqns]
    num_missing = [0] * len(eqns)
    last_effect: int | None = None
    for index, eqn in enumerate(eqns):
        needed = {maker[v] for v in eqn.invars if is_var(v) and v in maker}
        if eqn.effects:
            needed |= set() if last_effect is None else {last_effect}
            last_effect = index
        num_missing[index] = len(needed)
        for other in needed:
            followers[other].append(index)
    ready = [index for index, missing in enumerate(num_missing) if not missing]
    ordered: list[JaxprEqn] = []
    while ready:
        index = heapq.heappop(ready)
        ordered.append(eqns[index])
        for other in followers[index]:
            num_missing[other] -= 1
            if not num_missing[other]:
                heapq.heappush(ready, other)
    if len(ordered) != len(eqns):
        raise InternalError("equations of a rewritten step wait for each other")
    return ordered
