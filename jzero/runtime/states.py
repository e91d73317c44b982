"""A state taken apart: its leaves, what planning knows of them, and the way back.

Serves placing a state, and writing and reading checkpoints, which need the plan of a
state and not the arguments of a call. Lives here: `StateView`. May import: plan,
runtime. Read next: `birth.py`, which makes one of a state that is not there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from jzero.plan.leaves import LeafFacts, describe_tree
from jzero.plan.plan import Plan
from jzero.runtime.calls import StepFunction
from jzero.runtime.mutable import Objects, is_mutable, split_states
from jzero.runtime.placement import check_alive, sharding_of, user_spec
from jzero.runtime.settings import Known, Settings, plan_for_state
from jzero.runtime.tracing import abstract


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """A state taken apart.

    Attributes:
      leaves: arrays, or `ShapeDtypeStruct`s of a state that is not there yet.
      facts: of each leaf, its path and keys.
      plan: where each leaf belongs; no batch in it.
      mesh: the devices, with Auto axes.
      known: what was learned about each leaf besides.
      assemble: puts leaves together as the user holds them: a tree of the same
        types, or the same nnx objects with these leaves in them.
    """

    leaves: tuple[Any, ...]
    facts: tuple[LeafFacts, ...]
    plan: Plan
    mesh: Mesh
    known: tuple[Known, ...]
    assemble: Callable[[Sequence[Any]], Any]

    @property
    def shardings(self) -> tuple[NamedSharding, ...]:
        """Where each leaf belongs."""
        return tuple(sharding_of(leaf, self.mesh) for leaf in self.plan.state)

    @property
    def rows(self) -> list[tuple[str, Any]]:
        """(path, leaf) of every leaf."""
        return [(p.path, x) for p, x in zip(self.plan.state, self.leaves, strict=True)]


def name_states(
    tree: Any, function: StepFunction, argnums: Sequence[int] | None
) -> list[tuple[str, Any]]:
    """Names states after the arguments of the step that they are passed as.

    A plain tuple is one state per argument; anything else is a single state.
    """
    is_several = type(tree) is tuple and (argnums is None or len(argnums) > 1)
    trees = list(tree) if is_several else [tree]
    nums = argnums if argnums is not None else range(len(trees))
    return [
        (function.parameter_name(n), t) for n, t in zip(nums, trees, strict=False)
    ] + [(f"state{i}", t) for i, t in enumerate(trees[len(nums) :], len(nums))]


def view_state(
    state: Any,
    *,
    step_function: StepFunction,
    settings: Settings,
    before: Sequence[Known] | None = None,
) -> StateView:
    """Takes a state apart and plans it.

    Args:
      state: one state, the tuple of the step's state arguments, or nnx objects.
      step_function: the step, for the names of its arguments.
      settings: stage, mesh and config.
      before: what an earlier state of these shapes taught, as which leaves are
        stacked.

    Raises:
      DonationError: a leaf was donated.
    """
    parts = state if type(state) is tuple else (state,)
    tree, objects = state, None
    if any(is_mutable(part) for part in parts):
        _, tree = split_states(parts)
        objects = Objects(tuple(range(len(parts))), parts, None)
    leaves, treedef = jax.tree.flatten(tree)
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    check_alive(("state" + jax.tree_util.keystr(path), leaf) for path, leaf in paths)

    def assemble(new: Sequence[Any]) -> Any:
        made = treedef.unflatten(new)
        if objects is None:
            return made
        objects.update(made)
        return state

    structs = treedef.unflatten([abstract(x) for x in leaves])
    return plan_view(
        structs,
        leaves=leaves,
        known=_known_of(leaves, settings, before),
        assemble=assemble,
        step_function=step_function,
        settings=settings,
    )


def plan_view(
    structs: Any,
    *,
    leaves: Sequence[Any],
    known: Sequence[Known],
    assemble: Callable[[Sequence[Any]], Any],
    step_function: StepFunction,
    settings: Settings,
) -> StateView:
    """Plans a state given by its shapes; for the arguments see `StateView`."""
    named_args = name_states(structs, step_function, settings.state_argnums)
    is_several = len(named_args) > 1
    facts: list[LeafFacts] = []
    for arg, (name, tree) in enumerate(named_args):
        facts += describe_tree(tree, arg=arg, name=name)
    if is_several:
        # Keys of several arguments begin with the argument's name.
        names = [name for name, _ in named_args]
        facts = [_below(names[fact.arg], fact) for fact in facts]
    return StateView(
        leaves=tuple(leaves),
        facts=tuple(facts),
        plan=plan_for_state(named_args, known, settings),
        mesh=settings.mesh,
        known=tuple(known),
        assemble=assemble,
    )


def _below(name: str, fact: LeafFacts) -> LeafFacts:
    return LeafFacts(
        path=fact.path,
        keys=(name, *fact.keys),
        arg=fact.arg,
        shape=fact.shape,
        dtype=fact.dtype,
    )


def _known_of(
    leaves: Sequence[Any], settings: Settings, before: Sequence[Known] | None
) -> list[Known]:
    """Facts about given leaves: what the user sharded, what was known before."""
    shapes = [tuple(getattr(x, "shape", ())) for x in leaves]
    is_same = before is not None and [k.shape for k in before] == shapes
    return [
        Known(
            shape=shape,
            base_spec=user_spec(leaf, settings.mesh, settings.config.axes),
            is_stacked=before[i].is_stacked if before and is_same else False,
        )
        for i, (leaf, shape) in enumerate(zip(leaves, shapes, strict=True))
    ]
