"""Creating a state directly in its final place.

Lives here: `plan_birth`, which traces the user's initialiser and plans its result,
and `Birth`, which runs it with output shardings, so that no device ever holds the
whole of a leaf that is to be sharded. May import: ir, runtime. Read next:
`jzero/step.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import tree_flatten_with_path

from jzero.compat.jaxpr import jaxpr_callable
from jzero.compat.memory import to_host
from jzero.ir.facts import constrained_outputs, stacked_outputs
from jzero.runtime.calls import StepFunction
from jzero.runtime.host_memory import available_bytes, check_host_memory
from jzero.runtime.mutable import is_mutable, merge_states, split_states
from jzero.runtime.placement import place_leaf, without_axes
from jzero.runtime.settings import Known, Settings
from jzero.runtime.states import StateView, plan_view
from jzero.runtime.tracing import strong, trace_call


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """A state that is planned and not there yet.

    Attributes:
      view: its leaves, as `ShapeDtypeStruct`s, and where they belong.
      create: makes the leaves of these positions, each in its place; None makes all.
    """

    view: StateView
    create: Callable[[Sequence[int] | None], list[jax.Array]]

    def make(self) -> Any:
        """Creates the state, as the user's initialiser returns it."""
        return self.view.assemble(self.create(None))


def plan_birth(
    create_fn: Callable[..., Any],
    args: Sequence[Any],
    *,
    step_function: StepFunction,
    settings: Settings,
) -> Birth:
    """Plans what an initialiser would create, without running it.

    Args:
      create_fn: returns one state, the tuple of state arguments, or nnx objects.
      args: its arguments; static ones are recognised as in a step.
      step_function: the step, for the names of its arguments.
      settings: stage, mesh and config.
    """
    graphs: list[Any] = []

    def pure(*inner: Any) -> Any:
        created = create_fn(*inner)
        parts = created if type(created) is tuple else (created,)
        if not any(is_mutable(p) for p in parts):
            return created
        graphdef, states = split_states(parts)
        graphs[:] = [graphdef]
        return states if type(created) is tuple else states[0]

    call = StepFunction(pure).split(args, {})
    traced = trace_call(StepFunction(pure), call, settings.mesh)
    structs, treedef = jax.tree.flatten(traced.out)

    def assemble(leaves: Sequence[Any]) -> Any:
        created = treedef.unflatten(leaves)
        if not graphs:
            return created
        is_several = type(created) is tuple
        objects = merge_states(graphs[0], created if is_several else (created,))
        return objects if is_several else objects[0]

    facts = []
    for struct, is_stacked, spec, box in zip(
        structs,
        stacked_outputs(traced.jaxpr),
        constrained_outputs(traced.jaxpr),
        boxed_specs(traced.out),
        strict=True,
    ):
        shape = tuple(struct.shape)
        given = spec if spec is not None else box
        facts.append(
            Known(
                shape=shape,
                base_spec=PartitionSpec()
                if given is None
                else without_axes(given, len(shape), settings.config.axes),
                is_stacked=is_stacked and bool(shape),
            )
        )
    view = plan_view(
        traced.out,
        leaves=structs,
        known=facts,
        assemble=assemble,
        step_function=step_function,
        settings=settings,
    )
    mesh = settings.mesh

    def create_chosen(chosen: Sequence[int] | None) -> list[jax.Array]:
        check_host_memory(view.plan, mesh, free_bytes=available_bytes())
        positions = range(len(structs)) if chosen is None else chosen
        evaluate = jaxpr_callable(traced.jaxpr)
        whole = NamedSharding(mesh, PartitionSpec())
        inputs = [place_leaf(x, whole) for x in jax.tree.leaves(call.values)]

        def create(leaves: list[Any]) -> list[Any]:
            # Strong types: a counter that starts as a Python number would otherwise
            # compile the step twice.
            outs = evaluate(*leaves)
            new = [strong(outs[i]) for i in positions]
            return [
                to_host(x) if view.plan.state[i].is_on_host else x
                for x, i in zip(new, positions, strict=True)
            ]

        shardings = view.shardings
        chosen_shardings = [shardings[i] for i in positions]
        return jax.jit(create, out_shardings=chosen_shardings)(inputs)

    return Birth(view=view, create=create_chosen)


def boxed_specs(tree: Any) -> list[PartitionSpec | None]:
    """Returns the spec that a metadata box (flax `Partitioned`) gives each leaf."""

    def is_box(node: Any) -> bool:
        return hasattr(node, "get_partition_spec") and hasattr(node, "unbox")

    specs: list[PartitionSpec | None] = []
    for _, node in tree_flatten_with_path(tree, is_leaf=is_box)[0]:
        spec = node.get_partition_spec() if is_box(node) else None
        specs += [spec] * len(jax.tree.leaves(node))
    return specs
