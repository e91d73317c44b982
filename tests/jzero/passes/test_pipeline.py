"""What every pass must keep, on one table of programs."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jzero.compat.jaxpr import AnyJaxpr, inner
from jzero.config import PASS_NAMES, ZeroConfig
from jzero.ir.rules import CAST
from jzero.ir.trace import Pass, TracedStep
from jzero.passes.gather import gather_at_use
from jzero.passes.pipeline import PASSES, run_passes
from jzero.plan.plan import Plan
from tests.jzero.passes.steps import (
    PROGRAMS,
    check_types,
    equations,
    grid_mesh,
    run_here,
    run_spread,
    trace_program,
    trace_step,
    without_placement,
)

# So small that every window overflows in programs of a few kilobytes.
TIGHT = ZeroConfig(
    persistence_threshold=0,
    reduce_window_bytes=1500,
    reuse_window_bytes=1500,
    prefetch_bytes=2000,
)


@cache
def traced(name: str, stage: int) -> tuple[TracedStep, Plan]:
    return trace_program(name, stage, config=TIGHT)


@cache
def numbers_before(name: str) -> list[Any]:
    return run_here(traced(name, 3)[0].jaxpr, PROGRAMS[name].arguments())


@cache
def bits_before(name: str) -> list[Any]:
    step, _ = traced(name, 3)
    plain = without_placement(step.jaxpr, step.mesh)
    return run_here(plain, PROGRAMS[name].arguments())


def assert_close(got: Any, wanted: Any, rtol: float) -> None:
    """Compares by the largest number of an array; bfloat16 rounds its small ones."""
    for new, old in zip(got, wanted, strict=True):
        assert new.dtype == old.dtype
        largest = float(np.abs(old).max(initial=0.0))
        np.testing.assert_allclose(new, old, rtol=rtol, atol=rtol * largest + 1e-7)


@pytest.mark.parametrize("rewrite", PASSES, ids=lambda p: p.__name__)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_pass_only_adds_placement(name: str, rewrite: Pass) -> None:
    step, plan = traced(name, 3)
    before = str(step.jaxpr)
    new = rewrite(step, plan)
    check_types(new.jaxpr)
    assert str(step.jaxpr) == before, "the input program was changed"
    assert rewrite(new, plan).jaxpr is new.jaxpr, "a second run changed something"
    assert inner(new.jaxpr).effects == inner(step.jaxpr).effects
    assert_kept(step.jaxpr, new.jaxpr)
    plain = without_placement(new.jaxpr, new.mesh)
    if str(plain) == str(without_placement(step.jaxpr, step.mesh)):
        return  # the very same equations
    assert rewrite is gather_at_use, "only a gather moves the model's casts"
    got = run_here(plain, PROGRAMS[name].arguments())
    for one, other in zip(got, bits_before(name), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


def assert_kept(old: AnyJaxpr, new: AnyJaxpr) -> None:
    """All but placements and casts is there as before, with lines and effects."""

    def facts(jaxpr: AnyJaxpr) -> list[Any]:
        return [
            (
                e.primitive.name,
                [v.aval for v in e.outvars],
                str(e.source_info.name_stack),
                e.effects,
                sorted(e.params),
                e.params.get("differentiated"),
                e.params.get("policy"),
                e.params.get("prevent_cse"),
                id(e.source_info.traceback),
            )
            for e in equations(jaxpr)
            if e.primitive.name != CAST
            and "jzero." not in str(e.source_info.name_stack)
        ]

    assert facts(new) == facts(old)


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_eight_devices_compute_what_one_does(name: str, stage: int) -> None:
    step, plan = traced(name, stage)
    program = PROGRAMS[name]
    new = run_passes(step, plan)
    check_types(new.jaxpr)
    got = run_spread(new, plan, program.arguments())
    assert_close(got, numbers_before(name), program.rtol)


@pytest.mark.parametrize("spec", [(None, "model"), ("model",)], ids=str)
@pytest.mark.parametrize("name", ["half_mlp", "scanned_half_remat", "tied"])
def test_beside_an_axis_of_the_user(name: str, spec: tuple[str | None, ...]) -> None:
    base = PartitionSpec(*spec)
    program, mesh = PROGRAMS[name], grid_mesh()
    step, plan = trace_program(name, 3, config=TIGHT, mesh=mesh, base_spec=base)
    assert any("model" in p.spec and "data" in p.spec for p in plan.state)
    new = run_passes(step, plan)
    check_types(new.jaxpr)
    got = run_spread(new, plan, program.arguments())
    assert_close(got, numbers_before(name), program.rtol)


def test_stage_0_needs_no_pass_but_the_spread_of_rows() -> None:
    step, plan = trace_program("mlp", 0)
    assert run_passes(step, plan).jaxpr is step.jaxpr
    step, plan = trace_program("accumulate", 0)
    only = run_passes(step, plan)
    assert only.jaxpr is not step.jaxpr
    assert str(only.jaxpr) == str(PASSES[0](step, plan).jaxpr)


# What is offloaded cannot be left where it is: `ZeroConfig` refuses, and the passes
# have tests of their own.
@pytest.mark.parametrize("name", [n for n in PASS_NAMES if "offload" not in n])
def test_a_pass_is_left_out_by_name(name: str) -> None:
    config = ZeroConfig(
        persistence_threshold=0,
        reduce_window_bytes=0,
        disable_passes=[n for n in PASS_NAMES if n != name],
    )
    step, plan = trace_program("accumulate", 3, config=config)
    if name == "window":  # it acts on an unrolled model
        step, plan = trace_program("unrolled", 3, config=config)
    only = run_passes(step, plan)
    stacks = [str(e.source_info.name_stack) for e in equations(only.jaxpr)]
    scopes = set(re.findall(r"jzero\.[a-z_]+\b", " ".join(stacks)))
    words = {"reduce_at_birth": "reduce", "gather_at_use": "gather"}
    assert scopes == {f"jzero.{words.get(name, name)}"}


def test_the_passes_are_those_that_the_config_names() -> None:
    assert {p.__name__ for p in PASSES} == set(PASS_NAMES)


def test_each_layer_adds_the_same_number_of_equations() -> None:
    def eqns_after(layers: int) -> int:
        def step(params: Any, slots: Any, x: jax.Array) -> Any:
            def loss(params: Any) -> jax.Array:
                h = x
                for w in params:
                    h = jax.numpy.tanh(h @ w)
                return (h**2).mean()

            grads = jax.grad(loss)(params)
            new = jax.tree.map(lambda p, g: p - g, params, grads)
            return new, slots, 0.0

        weights = [jax.numpy.ones((16, 16))] * layers
        traced_step, plan = trace_step(
            step, (weights, (), jax.numpy.ones((16, 16))), 3, config=TIGHT
        )
        return len(list(equations(run_passes(traced_step, plan).jaxpr)))

    few, many, more = (eqns_after(n) for n in (4, 8, 12))
    assert more - many == many - few
