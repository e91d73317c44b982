"""Traced steps with plans, as the runtime makes them, and what passes must keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import check_jaxpr, jaxpr_as_fun
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jzero.compat.jaxpr import AnyJaxpr, JaxprEqn, inner, rebuild
from jzero.config import ZeroConfig
from jzero.ir.bodies import bodies_of, with_bodies
from jzero.ir.edit import Editor
from jzero.ir.facts import scanned_inputs
from jzero.ir.rules import BARRIER, CONSTRAINT
from jzero.ir.trace import TracedStep
from jzero.plan.batch import BatchFacts, plan_batch
from jzero.plan.leaves import describe_tree
from jzero.plan.plan import Plan, plan_state
from jzero.plan.roles import assign_roles
from jzero.plan.stages import check_stage
from tests.jzero.passes.body_programs import BODIES
from tests.jzero.passes.programs import USUAL, StepProgram
from tests.jzero.passes.rare_programs import RARE

PROGRAMS = USUAL | BODIES | RARE
EVERYTHING = ZeroConfig(persistence_threshold=0)


def line_mesh(num_devices: int = 8) -> Mesh:
    """A mesh with one axis, `data`."""
    devices = np.array(jax.devices()[:num_devices])
    return Mesh(devices, ("data",), axis_types=(AxisType.Auto,))


def grid_mesh() -> Mesh:
    """A mesh with an axis of the user's beside `data`."""
    devices = np.array(jax.devices()).reshape(4, 2)
    return Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def trace_program(
    program: StepProgram | str,
    stage: int,
    *,
    config: ZeroConfig = EVERYTHING,
    mesh: Mesh | None = None,
    base_spec: PartitionSpec | None = None,
) -> tuple[TracedStep, Plan]:
    """Traces a program and plans it; every leaf that can be is sharded.

    `base_spec` is how the user sharded the last two dims of what has them.
    """
    program = PROGRAMS[program] if isinstance(program, str) else program
    return trace_step(
        program.step,
        program.arguments(),
        stage,
        config=config,
        mesh=mesh,
        base_spec=base_spec,
    )


def trace_step(
    step: Callable[..., Any],
    args: Sequence[Any],
    stage: int,
    *,
    config: ZeroConfig = EVERYTHING,
    mesh: Mesh | None = None,
    base_spec: PartitionSpec | None = None,
) -> tuple[TracedStep, Plan]:
    """Traces `(params, slots, *batch) -> (params, slots, rest)` and plans it."""
    mesh = mesh or line_mesh()
    flat, treedef = jax.tree.flatten(tuple(args))

    def flat_step(*leaves: Any) -> Any:
        return step(*treedef.unflatten(leaves))

    jaxpr = jax.make_jaxpr(flat_step)(*flat)
    scanned = scanned_inputs(jaxpr)
    num_state = len(jax.tree.leaves(args[:2]))
    leaves = []
    for arg, name in enumerate(("params", "slots")):
        start = len(leaves)
        count = len(jax.tree.leaves(args[arg]))
        stacked = [(0,) if s else () for s in scanned[start : start + count]]
        bases = [_base(x.ndim, base_spec) for x in jax.tree.leaves(args[arg])]
        leaves += describe_tree(
            args[arg], arg=arg, name=name, base_specs=bases, stacked_dims=stacked
        )
    roles = assign_roles(leaves, arg_names=("params", "slots"))
    sizes = dict(mesh.shape)
    batch = [
        BatchFacts(path=f"batch{i}", arg=2 + i, shape=x.shape, dtype=x.dtype)
        for i, x in enumerate(flat[num_state:])
    ]
    plan = Plan(
        stage=stage,
        placement=check_stage(config, stage),
        axis_sizes=tuple(sizes.items()),
        zero_axes=config.axes,
        batch_axes=config.batch_axes,
        config=config,
        state=plan_state(leaves, roles, stage=stage, config=config, axis_sizes=sizes),
        batch=plan_batch(batch, axis_sizes=sizes, batch_axes=config.batch_axes),
    )
    traced = TracedStep(
        jaxpr=jaxpr,
        mesh=mesh,
        state_ins=tuple(range(num_state)),
        state_outs=tuple(range(num_state)),
        batch_ins=tuple(range(num_state, len(flat))),
    )
    return traced, plan


# Less time to compile, and the same arithmetic before and after a pass.
QUICK = {"xla_backend_optimization_level": 0}


def _base(rank: int, spec: PartitionSpec | None) -> PartitionSpec:
    if spec is None or rank < 2:
        return PartitionSpec()
    return PartitionSpec(*[None] * (rank - 2), *spec)


def run_here(jaxpr: AnyJaxpr, args: Sequence[Any]) -> list[Any]:
    """Runs a program on one device."""
    run = jax.jit(jaxpr_as_fun(jaxpr), compiler_options=QUICK)
    return [np.asarray(x) for x in run(*jax.tree.leaves(args))]


def run_spread(step: TracedStep, plan: Plan, args: Sequence[Any]) -> list[Any]:
    """Runs a program on the devices of its mesh, laid out as planned."""
    specs: list[Any] = [None] * len(inner(step.jaxpr).invars)
    for flat, leaf in zip(step.state_ins, plan.state, strict=True):
        specs[flat] = NamedSharding(step.mesh, leaf.spec)
    for flat, data in zip(step.batch_ins, plan.batch, strict=True):
        specs[flat] = NamedSharding(step.mesh, data.spec)
    run = jax.jit(
        jaxpr_as_fun(step.jaxpr), in_shardings=tuple(specs), compiler_options=QUICK
    )
    return [np.asarray(x) for x in run(*jax.tree.leaves(args))]


def check_types(jaxpr: AnyJaxpr) -> None:
    """Fails if an equation gets what its primitive does not take."""
    check_jaxpr(inner(jaxpr))


def equations(jaxpr: AnyJaxpr) -> Iterator[JaxprEqn]:
    """Every equation of a program, bodies included, outer ones first."""
    for eqn in inner(jaxpr).eqns:
        yield eqn
        for body in bodies_of(eqn):
            yield from equations(body.jaxpr)


def without_placement(jaxpr: AnyJaxpr, mesh: Mesh) -> AnyJaxpr:
    """Returns the program without barriers and sharding constraints."""
    editor = Editor(mesh)
    for eqn in inner(jaxpr).eqns:
        if eqn.primitive.name in (BARRIER, CONSTRAINT):
            for var, atom in zip(eqn.outvars, eqn.invars, strict=True):
                editor.rename(var, editor.read(atom))
            continue
        bodies = bodies_of(eqn)
        new = [without_placement(b.jaxpr, mesh) for b in bodies]
        editor.copy(eqn, params=with_bodies(eqn, bodies, new) if bodies else None)
    outvars = [editor.read(v) for v in inner(jaxpr).outvars]
    return rebuild(jaxpr, eqns=editor.eqns, outvars=outvars)
