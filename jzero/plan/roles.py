"""Which leaves are parameters, which are optimizer state, and whose.

Lives here: the decision per leaf. May import: `errors`, `config`, `leaves.py`,
`names.py`, `mirrors.py`, `params.py`. Read next: `layout.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jzero.config import ParamsSelector
from jzero.errors import ParamsError, format_problem
from jzero.plan.leaves import LeafFacts, describe_type, is_inexact
from jzero.plan.mirrors import MirrorIndex
from jzero.plan.names import Hint, read_state_names
from jzero.plan.params import FoundParam, find_params, select_params

__all__ = ["Role", "RoleInfo", "assign_roles"]

Role = Literal["parameter", "optimizer", "other"]

_SELECT = 'name them, e.g. config=ZeroConfig(params=r"\\bmodel\\b").'


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
    """Decides for each leaf of the state whether it is a parameter, and whose copy.

    Parameters are, in this order of trust:

    1. what `selector` picks;
    2. the float leaves of a container named as such (`state.params`, an argument
       `params` or `model`), and what an optimizer's state repeats elsewhere;
    3. without such names, the float leaves that an optimizer's state repeats, and
       their unrepeated neighbours (frozen layers are parameters too);
    4. without such a state, as in plain SGD, every float array.

    Optimizer state is any leaf that ends like a parameter's path and has its shape
    (moments, accumulated gradients, an EMA, slow weights), and every other float
    leaf of an optimizer's state. All else, such as batch statistics, counters and
    random keys, is "other".

    Args:
        leaves: The leaves of all state arguments.
        arg_names: The name of each argument of the step, by argument index.
        selector: Regular expressions searched in a leaf's path, or a predicate of
            the path. Leaves of an optimizer's state count only if no others match.

    Returns:
        One record per leaf, in order.

    Raises:
        ParamsError: No leaf can be a parameter, or the selector picks nothing or
            leaves that are not floats.

    Example:
        >>> import numpy as np
        >>> leaves = [
        ...     LeafFacts(path="p['w']", keys=("w",), arg=0, shape=(4, 2),
        ...               dtype=np.dtype("f4")),
        ...     LeafFacts(path="s.mu['w']", keys=("mu", "w"), arg=1, shape=(4, 2),
        ...               dtype=np.dtype("f4")),
        ... ]
        >>> [(r.role, r.owner) for r in assign_roles(leaves, arg_names=["p", "s"])]
        [('parameter', None), ('optimizer', 0)]
    """
    names = read_state_names(leaves, arg_names)
    if selector is not None:
        params = select_params(leaves, names, selector)
    else:
        params = find_params(leaves, names)
        if not params:
            # Names of arguments may mislead (`opt` holding everything).
            names = read_state_names(leaves, [""] * len(arg_names))
            params = find_params(leaves, names)
    if not params:
        raise ParamsError(
            format_problem(
                "No parameters were found among the leaves of the state:",
                [(leaf.path, describe_type(leaf)) for leaf in leaves],
                f"if some of these are trained, {_SELECT}",
            )
        )
    if selector is None:
        orphans = _copies_of_nothing(leaves, names, params, arg_names)
        if orphans:
            for index in orphans:
                names[index] = Hint(meaning="unknown")
            params = find_params(leaves, names)
    return _roles(leaves, names, params, arg_names)


def _copies_of_nothing(
    leaves: Sequence[LeafFacts],
    names: Sequence[Hint],
    params: dict[int, FoundParam],
    arg_names: Sequence[str],
) -> list[int]:
    """Finds float leaves named like copies (`slow`, `target`) that copy nothing."""
    copies = [i for i, hint in enumerate(names) if hint.meaning == "copy"]
    if not copies:
        return []
    mirrors = MirrorIndex(leaves, {i: p.tails for i, p in params.items()}, arg_names)
    return [
        index
        for index in copies
        if index not in params
        and is_inexact(leaves[index].dtype)
        and mirrors.owner_of(leaves[index], allow_bare=True) is None
    ]


def _roles(
    leaves: Sequence[LeafFacts],
    names: Sequence[Hint],
    params: dict[int, FoundParam],
    arg_names: Sequence[str],
) -> tuple[RoleInfo, ...]:
    """Gives every leaf its role, once the parameters are known."""
    mirrors = MirrorIndex(leaves, {i: p.tails for i, p in params.items()}, arg_names)
    owners: dict[int, int] = {}
    for index, leaf in enumerate(leaves):
        meaning = names[index].meaning
        if index in params or meaning == "stats":
            continue
        owner = mirrors.owner_of(leaf, allow_bare=meaning != "params")
        if owner is not None:
            owners[index] = owner
    # An optimizer's own floats: its tree holds mirrors and no parameter.
    places_of_params = {place for i in params for place in _places(leaves[i])}
    places = {place for i in owners for place in _places(leaves[i])} - places_of_params

    def role_of(index: int) -> RoleInfo:
        leaf, meaning = leaves[index], names[index].meaning
        if index in params:
            return RoleInfo(role="parameter", owner=None, why=params[index].why)
        if index in owners:
            why = f"mirrors {leaves[owners[index]].path}"
            return RoleInfo(role="optimizer", owner=owners[index], why=why)
        if not is_inexact(leaf.dtype):
            return RoleInfo(role="other", owner=None, why="not a float")
        if meaning == "stats":
            return RoleInfo(role="other", owner=None, why="statistics")
        in_optimizer = meaning == "optimizer" or (
            meaning == "unknown" and not places.isdisjoint(_places(leaf))
        )
        if in_optimizer:
            return RoleInfo(role="optimizer", owner=None, why="in an optimizer's state")
        return RoleInfo(role="other", owner=None, why="not trained")

    return tuple(role_of(index) for index in range(len(leaves)))


def _places(leaf: LeafFacts) -> tuple[tuple[int, str | None], ...]:
    """Returns the argument that holds a leaf, and the field of it."""
    field = leaf.keys[0] if leaf.keys else None
    return ((leaf.arg, None), (leaf.arg, field)) if field else ((leaf.arg, None),)
