"""Where copies to and from host memory stand in a rewritten step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jzero import Offload, ZeroConfig
from jzero.compat.jaxpr import AnyJaxpr, JaxprEqn, inner, is_var
from jzero.compat.memory import is_on_host
from jzero.ir.rules import BARRIER
from jzero.ir.trace import TracedStep
from jzero.passes.offload import offload
from jzero.passes.pipeline import run_passes
from jzero.plan.plan import Plan
from tests.jzero.passes.steps import (
    PROGRAMS,
    check_types,
    equations,
    trace_program,
    trace_step,
)

W = np.ones((16, 16), np.float32)


def config_of(**settings: Any) -> ZeroConfig:
    return ZeroConfig(persistence_threshold=0, offload=Offload(**settings))


def momentum(params: Any, slots: Any, x: Any) -> tuple[Any, ...]:
    def loss(p: Any) -> jax.Array:
        h = x
        for w in p.values():
            h = jnp.sin(h @ w)
        return h.sum()

    grads = jax.grad(loss)(params)
    slots = jax.tree.map(lambda m, g: 0.9 * m + g, slots, grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, params, slots)
    return params, slots, slots["a"].mean()


def rewritten(
    stage: int = 3, names: str = "ab", **settings: Any
) -> tuple[TracedStep, Plan]:
    weights = dict.fromkeys(names, W)
    step, plan = trace_step(
        momentum, (weights, weights, W), stage, config=config_of(**settings)
    )
    return offload(step, plan), plan


def copies(jaxpr: AnyJaxpr) -> tuple[list[JaxprEqn], list[JaxprEqn]]:
    """Copies to the device, and copies to the host."""
    found = [e for e in equations(jaxpr) if e.primitive.name == "device_put"]
    to_host = [e for e in found if is_on_host(e.outvars[0].aval)]
    return [e for e in found if e not in to_host], to_host


def test_inputs_and_outputs_rest_where_the_plan_says() -> None:
    step, plan = rewritten(optimizer="host")
    body = inner(step.jaxpr)
    for flat_in, flat_out, leaf in zip(
        step.state_ins, step.state_outs, plan.state, strict=True
    ):
        assert is_on_host(body.invars[flat_in].aval) == leaf.is_on_host
        assert is_on_host(body.outvars[flat_out].aval) == leaf.is_on_host
    assert [leaf.is_on_host for leaf in plan.state] == [False, False, True, True]


def test_each_moment_comes_once_and_goes_once() -> None:
    step, _ = rewritten(optimizer="host")
    to_device, to_host = copies(step.jaxpr)
    assert len(to_device) == len(to_host) == 2


def test_nothing_waits_within_the_window() -> None:
    step, _ = rewritten(optimizer="host")
    assert not [e for e in equations(step.jaxpr) if e.primitive.name == BARRIER]


def test_the_third_waits_for_the_first_to_be_back_in_host_memory() -> None:
    # Room for two leaves and their copies back: shards of 2 x 16 elements.
    step, _ = rewritten(optimizer="host", names="abc", window=2 * 2 * 4 * 32)
    barriers = [e for e in equations(step.jaxpr) if e.primitive.name == BARRIER]
    assert len(barriers) == 1
    _, to_host = copies(step.jaxpr)
    results = {e.outvars[0] for e in to_host}
    assert results & {v for v in barriers[0].invars if is_var(v)}


def test_a_leaf_beyond_the_window_runs_in_a_loop() -> None:
    step, _ = rewritten(optimizer="host", window=64)
    loops = [e for e in inner(step.jaxpr).eqns if e.primitive.name in ("while", "scan")]
    assert len(loops) == 2


@pytest.mark.parametrize(("stage", "count"), [(1, 2), (3, 3)])
def test_weights_are_fetched_once_or_at_each_use(stage: int, count: int) -> None:
    two = {"a": W, "b": W}

    def half(params: Any, slots: Any, x: Any) -> tuple[Any, ...]:
        def loss(p: Any) -> jax.Array:
            p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
            return jnp.sin(x.astype(jnp.bfloat16) @ p["a"] @ p["b"]).sum()

        grads = jax.grad(loss)(params)
        return jax.tree.map(lambda p, g: p - g, params, grads), slots, x.sum()

    config = ZeroConfig(
        persistence_threshold=0, reuse_window_bytes=0, offload=Offload(params="host")
    )
    step, plan = trace_step(half, (two, two, W), stage, config=config)
    step = run_passes(step, plan)
    to_device, _ = copies(step.jaxpr)
    updates = 2
    assert len(to_device) - updates >= count


def test_computing_on_the_host_moves_no_moment() -> None:
    step, _ = rewritten(optimizer="host", compute="host")
    to_device, to_host = copies(step.jaxpr)
    sources = {e.invars[0] for e in to_device}
    body = inner(step.jaxpr)
    assert not sources & set(body.invars[2:4])
    assert len(to_host) >= 2  # the gradients


def test_a_scan_cuts_layers_out_by_number() -> None:
    step, plan = trace_program("scanned", 3, config=config_of(params="host"))
    new = offload(step, plan)
    loops = [e for e in equations(new.jaxpr) if e.primitive.name == "scan"]
    assert loops
    stacked = {leaf.shape for leaf in plan.state if leaf.is_on_host}
    for loop in loops:
        body = inner(loop.params["jaxpr"])
        # Whole stacks go in, nothing in host memory comes out.
        for var in body.invars:
            if is_on_host(var.aval):
                assert tuple(var.aval.shape) in stacked
        assert not any(is_on_host(v.aval) for v in body.outvars)


def test_nothing_offloaded_changes_nothing() -> None:
    step, plan = trace_program("scanned", 3)
    assert offload(step, plan) is step


@pytest.mark.parametrize(("stage", "window"), [(1, 2**30), (3, 64)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_types_and_memories_agree(name: str, stage: int, window: int) -> None:
    config = config_of(params="host", optimizer="host", window=window)
    step, plan = trace_program(name, stage, config=config)
    check_types(run_passes(step, plan).jaxpr)


def test_a_result_that_is_returned_twice() -> None:
    def step(params: Any, slots: Any, x: Any) -> tuple[Any, ...]:
        slots = {"a": slots["a"] * 0.5 + x}
        return params, slots, (slots["a"], params["a"])

    for window in (64, 2**30):
        config = config_of(params="host", optimizer="host", window=window)
        weights = {"a": W}
        traced, plan = trace_step(step, (weights, weights, W), 3, config=config)
        body = inner(offload(traced, plan).jaxpr)
        resting = [is_on_host(v.aval) for v in body.outvars]
        assert resting == [True, True, False, False]
