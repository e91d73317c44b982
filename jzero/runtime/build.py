"""From a call to its program: trace, match, plan, rewrite.

Lives here: `build_program`. May import: runtime, passes, ir, plan. Read next:
`jzero/step.py`, which keeps programs and calls them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
from jax.sharding import PartitionSpec

from jzero.compat.jaxpr import inner, rebuild
from jzero.errors import ConfigError
from jzero.ir.facts import count_turns, derived_outputs, scanned_inputs
from jzero.ir.kernels import choose_kernels, describe_kernels
from jzero.ir.trace import TracedStep
from jzero.passes.pipeline import run_passes
from jzero.plan.batch import BatchFacts, BatchLeafPlan, plan_batch
from jzero.plan.leaves import describe_tree
from jzero.plan.plan import Plan
from jzero.runtime.calls import Call, StepFunction
from jzero.runtime.collector import collector_paused
from jzero.runtime.match import Matched, is_key_or_scalar, match_state
from jzero.runtime.mesh import axis_sizes, tracing_context
from jzero.runtime.program import Layout, Program, wrap_program
from jzero.runtime.settings import Known, Settings, plan_for_state
from jzero.runtime.tracing import (
    TracedCall,
    strong_state,
    trace_call,
    trace_guessing,
    weak_args,
)


@collector_paused()
def build_program(
    function: StepFunction,
    call: Call,
    settings: Settings,
    *,
    known: Sequence[Known] | None,
    given: Sequence[PartitionSpec],
) -> Program:
    """Traces, plans, rewrites and wraps one call in `jax.jit`.

    Args:
      function: the user's step.
      call: the call, taken apart.
      settings: stage, mesh and config.
      known: facts about the state leaves in flat order, from `init` or `shard`.
      given: per flat input leaf, how the user already sharded it.

    Returns:
      The program. Nothing is compiled yet.
    """
    chosen = _dynamic_indices(call, settings.state_argnums, "state_argnums")
    traced, guessed = trace_guessing(function, call, settings.mesh, chosen)
    derived = derived_outputs(traced.jaxpr)
    matched = match_state(
        call.names, traced.args, traced.out, chosen=chosen, derived=derived
    )
    if weak_args(call, guessed) != weak_args(call, matched.args):
        strong_values = strong_state(call, matched.args)
        traced = trace_call(function, call, settings.mesh, strong_values)
        matched = match_state(
            call.names, traced.args, traced.out, chosen=chosen, derived=derived
        )
    with tracing_context(settings.mesh):
        jaxpr, updates = choose_kernels(
            traced.jaxpr, settings.config.kernels, settings.mesh
        )
    traced = replace(traced, jaxpr=jaxpr)
    layout = Layout.of(traced, matched)
    scanned = scanned_inputs(traced.jaxpr)
    facts = _merge_known(traced, layout, scanned, known, given)
    plan = _plan(call, traced, matched, settings, facts)
    if settings.config.kernels is not None:
        line = describe_kernels(updates, settings.config.kernels)
        plan = replace(plan, notes=(*plan.notes, line))
    turns = count_turns(traced.jaxpr)
    plan = replace(
        plan,
        batch=_plan_data(call, traced, matched, settings, scanned),
        num_micro_batches=_most_turns(plan, [turns[i] for i in layout.state_flat]),
    )
    step = TracedStep(
        jaxpr=rebuild(
            traced.jaxpr,
            eqns=inner(traced.jaxpr).eqns,
            outvars=[inner(traced.jaxpr).outvars[i] for i in layout.outs],
        ),
        mesh=settings.mesh,
        state_ins=layout.state_flat,
        state_outs=tuple(range(len(layout.state_flat))),
        batch_ins=layout.other_flat,
    )
    with tracing_context(settings.mesh):
        rewritten = run_passes(step, plan)
    return wrap_program(function, traced, rewritten, plan, layout, matched)


def _dynamic_indices(
    call: Call, argnums: Sequence[int] | None, name: str
) -> tuple[int, ...] | None:
    """Turns positions in the signature into indices of dynamic arguments."""
    if argnums is None:
        return None
    indices = []
    for num in argnums:
        position = num + call.num_positional if num < 0 else num
        if position not in call.keys:
            raise ConfigError(
                f"{name}={tuple(argnums)}: argument {num} is not a dynamic positional "
                f"argument of this call, which has {list(call.keys)}.\n"
                f"Remedy: name positions of arrays in {name}."
            )
        indices.append(call.keys.index(position))
    return tuple(indices)


def _plan(
    call: Call,
    traced: TracedCall,
    matched: Matched,
    settings: Settings,
    facts: Sequence[Known],
) -> Plan:
    notes = [*matched.notes]
    notes.append("state: " + ", ".join(call.names[i] for i in matched.args))
    others = [n for i, n in enumerate(call.names) if i not in matched.args]
    if others:
        notes.append("data: " + ", ".join(others))
    if call.statics:
        notes.append("static: " + ", ".join(f"{k}={v!r}" for k, v in call.statics))
    named_args = [(call.names[i], traced.args[i]) for i in matched.args]
    return plan_for_state(named_args, facts, settings, notes=tuple(notes))


def _most_turns(plan: Plan, turns: Sequence[int]) -> int:
    """Returns how often a step uses most elements of its parameters, 1 at least."""
    elems: dict[int, int] = {}
    for leaf, num in zip(plan.state, turns, strict=True):
        if leaf.role == "parameter":
            elems[num] = elems.get(num, 0) + leaf.size_elems
    return max(1, max(elems, key=elems.__getitem__, default=1))


def _plan_data(
    call: Call,
    traced: TracedCall,
    matched: Matched,
    settings: Settings,
    scanned: Sequence[bool],
) -> tuple[BatchLeafPlan, ...]:
    facts: list[BatchFacts] = []
    flat = 0
    for i, arg in enumerate(traced.args):
        structs = jax.tree.leaves(arg)
        leaves = describe_tree(arg, arg=i, name=call.names[i])
        if i not in matched.args:
            facts += [
                BatchFacts(
                    path=leaf.path,
                    arg=i,
                    shape=leaf.shape,
                    dtype=leaf.dtype,
                    scanned=scanned[flat + k],
                    is_key=is_key_or_scalar(struct) and bool(leaf.shape),
                )
                for k, (leaf, struct) in enumerate(zip(leaves, structs, strict=True))
            ]
        flat += len(structs)
    return plan_batch(
        facts,
        axis_sizes=dict(axis_sizes(settings.mesh)),
        batch_axes=settings.config.batch_axes,
        batch_args=_dynamic_indices(call, settings.batch_argnums, "batch_argnums"),
    )


def _merge_known(
    traced: TracedCall,
    layout: Layout,
    scanned: Sequence[bool],
    known: Sequence[Known] | None,
    given: Sequence[PartitionSpec],
) -> list[Known]:
    """Joins what the trace and the arrays show with what `init` or `shard` saw."""
    structs = jax.tree.leaves(traced.args)
    shapes = [tuple(structs[i].shape) for i in layout.state_flat]
    before = [Known(shape=shape) for shape in shapes]
    if known is not None and [k.shape for k in known] == shapes:
        before = list(known)
    return [
        Known(
            shape=shape,
            base_spec=old.base_spec if any(old.base_spec) else given[flat],
            is_stacked=old.is_stacked or (scanned[flat] and bool(shape)),
        )
        for flat, shape, old in zip(layout.state_flat, shapes, before, strict=True)
    ]
