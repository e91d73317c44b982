"""Tracing takes shapes alone and keeps weak types apart."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jzero.compat.jaxpr import inner
from jzero.runtime.calls import StepFunction
from jzero.runtime.mesh import default_mesh
from jzero.runtime.tracing import (
    abstract,
    has_weak_state,
    strong,
    strong_state,
    trace_call,
)


def step(state, x, mode="a"):
    return {"n": state["n"] + 1, "w": state["w"] * x.sum()}, mode == "a"


def test_shapes_of_everything_that_can_be_passed() -> None:
    assert abstract(np.ones((2, 3), np.float64)).dtype == jnp.float32
    assert abstract(3).weak_type and abstract(3).shape == ()
    assert not abstract(jnp.int32(3)).weak_type
    assert abstract(jax.random.key(0)).shape == ()


def test_a_call_becomes_a_flat_program_and_nothing_runs() -> None:
    function = StepFunction(step)
    call = function.split(({"n": 0, "w": jnp.ones(4)}, jnp.ones(8), "b"), {})
    traced = trace_call(function, call, default_mesh("data"))
    assert [tuple(v.aval.shape) for v in inner(traced.jaxpr).invars] == [(), (4,), (8,)]
    assert traced.out[0]["w"].shape == (4,)
    assert has_weak_state(traced, (0,)) and not has_weak_state(traced, (1,))
    again = trace_call(function, call, default_mesh("data"), strong_state(traced, (0,)))
    assert not has_weak_state(again, (0,))


def test_strong_strips_the_weak_type() -> None:
    shapes = jax.eval_shape(lambda: strong(jnp.asarray(1.0) * 1))
    assert not shapes.weak_type
