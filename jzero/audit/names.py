"""Which leaf of the state a collective moves, where that can be told.

Lives here: `name_leaves`. Gathers carry the number of their leaf in their name; the
sum of a gradient is recognized by its shape and by the path of modules that it comes
from. May import: `facts`, plan. Read next: `step_report.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from jzero.audit.facts import CollectiveFacts
from jzero.plan.plan import LeafPlan, Plan

__all__ = ["GATHER_SCOPE", "has_elems", "leaf_numbers", "name_leaves"]

GATHER_SCOPE = "jzero.gather"
_LEAF = re.compile(r"\bjzero\.leaf(\d+)")
_KEYS = re.compile(r"\w+")


def leaf_numbers(op_name: str) -> tuple[int, ...]:
    """Returns the numbers of the leaves that a gather's name speaks of, in order."""
    return tuple(dict.fromkeys(int(number) for number in _LEAF.findall(op_name)))


def name_leaves(fact: CollectiveFacts, plan: Plan) -> tuple[LeafPlan, ...]:
    """Returns the leaves whose values or gradients a collective moves, if known.

    Args:
        fact: The collective.
        plan: The plan of the step it is part of.
    """
    numbers = leaf_numbers(fact.op_name)
    if numbers:
        return tuple(plan.state[i] for i in numbers if i < len(plan.state))
    params = [leaf for leaf in plan.state if leaf.role == "parameter"]
    found: dict[str, LeafPlan] = {}
    scale = fact.group_size if fact.kind == "all-gather" else 1
    for part in fact.parts:
        leaf = _find(math.prod(part.dims) * scale, fact, params)
        if leaf is not None:
            found[leaf.path] = leaf
    return tuple(found.values())


def has_elems(leaf: LeafPlan, num_elems: int, runs: int) -> bool:
    """Says whether a leaf, or one layer of it in a loop over layers, has a size."""
    if num_elems == leaf.size_elems:
        return True
    num_layers = leaf.shape[0] if leaf.shape else 1
    is_loop = runs > 1 and num_layers > 1 and runs % num_layers == 0
    return is_loop and num_elems * num_layers == leaf.size_elems


def _find(
    num_elems: int, fact: CollectiveFacts, params: Sequence[LeafPlan]
) -> LeafPlan | None:
    """The parameter of these elements whose path shares most keys with a name."""
    words = set(_KEYS.findall(fact.op_name))
    best: LeafPlan | None = None
    best_score = 0
    for leaf in params:
        if not has_elems(leaf, num_elems, fact.runs):
            continue
        score = len(words & set(_KEYS.findall(leaf.path)))
        if score > best_score:
            best, best_score = leaf, score
    return best
