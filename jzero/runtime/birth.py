"""Creating a state directly in its final place.

Lives here: `create_state`, which traces the user's initialiser, plans its result
and runs it with output shardings, so that no device ever holds the whole of a
leaf that is to be sharded. May import: ir, runtime. Read next: `jzero/step.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import tree_flatten_with_path

from jzero.compat.jaxpr import jaxpr_callable
from jzero.compat.memory import to_host
from jzero.ir.facts import constrained_outputs, stacked_outputs
from jzero.plan.plan import Plan
from jzero.runtime.calls import StepFunction
from jzero.runtime.host_memory import available_bytes, check_host_memory
from jzero.runtime.placement import place_leaf, resting_place, without_axes
from jzero.runtime.settings import Known, Settings, plan_for_state
from jzero.runtime.tracing import strong, trace_call


def name_states(
    tree: Any, function: StepFunction, argnums: Sequence[int] | None
) -> list[tuple[str, Any]]:
    """Names what `create_fn` returned after the arguments it is passed as.

    A plain tuple is one state per argument; anything else is a single state.
    """
    is_several = type(tree) is tuple and (argnums is None or len(argnums) > 1)
    trees = list(tree) if is_several else [tree]
    nums = argnums if argnums is not None else range(len(trees))
    return [
        (function.parameter_name(n), t) for n, t in zip(nums, trees, strict=False)
    ] + [(f"state{i}", t) for i, t in enumerate(trees[len(nums) :], len(nums))]


def create_state(
    create_fn: Callable[..., Any],
    args: Sequence[Any],
    *,
    step_function: StepFunction,
    settings: Settings,
) -> tuple[Any, Plan, list[Known]]:
    """Runs an initialiser so that every leaf is born where it will live.

    Args:
      create_fn: returns one state, or the tuple of state arguments.
      args: its arguments; static ones are recognised as in a step.
      step_function: the step, for the names of its arguments.
      settings: stage, mesh and config.

    Returns:
      (what `create_fn` returns, the plan, what was learned about each leaf).
    """
    function = StepFunction(create_fn)
    call = function.split(args, {})
    traced = trace_call(function, call, settings.mesh)
    structs = jax.tree.leaves(traced.out)
    boxed = boxed_specs(traced.out)
    facts = []
    for struct, is_stacked, spec, box in zip(
        structs,
        stacked_outputs(traced.jaxpr),
        constrained_outputs(traced.jaxpr),
        boxed,
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
    named_args = name_states(traced.out, step_function, settings.state_argnums)
    plan = plan_for_state(named_args, facts, settings)
    mesh = settings.mesh
    check_host_memory(plan, mesh, free_bytes=available_bytes())
    whole = NamedSharding(mesh, PartitionSpec())
    inputs = [place_leaf(x, whole) for x in jax.tree.leaves(call.values)]
    evaluate = jaxpr_callable(traced.jaxpr)

    def create(leaves: list[Any]) -> list[Any]:
        # Strong types: a counter that starts as a Python number would otherwise
        # compile the step twice.
        return [
            to_host(strong(x)) if leaf.is_on_host else strong(x)
            for x, leaf in zip(evaluate(*leaves), plan.state, strict=True)
        ]

    shardings = [resting_place(mesh, leaf) for leaf in plan.state]
    leaves = jax.jit(create, out_shardings=shardings)(inputs)
    return jax.tree.structure(traced.out).unflatten(leaves), plan, facts


def boxed_specs(tree: Any) -> list[PartitionSpec | None]:
    """Returns the spec that a metadata box (flax `Partitioned`) gives each leaf."""

    def is_box(node: Any) -> bool:
        return hasattr(node, "get_partition_spec") and hasattr(node, "unbox")

    specs: list[PartitionSpec | None] = []
    for _, node in tree_flatten_with_path(tree, is_leaf=is_box)[0]:
        spec = node.get_partition_spec() if is_box(node) else None
        specs += [spec] * len(jax.tree.leaves(node))
    return specs
