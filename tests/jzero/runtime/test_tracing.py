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
    strong,
    strong_state,
    trace_call,
    trace_guessing,
    weak_args,
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
    assert weak_args(call, (0, 1)) == {0}
    assert traced.args[0]["n"].weak_type
    assert not strong_state(call, (0,))[0]["n"].weak_type


def test_a_number_is_traced_as_state_at_once_if_it_may_be() -> None:
    calls = []

    def counted(state, x, lr):
        calls.append(x)
        return {"n": state["n"] + 1, "w": state["w"] * lr}

    mesh = default_mesh("data")
    function = StepFunction(counted)
    call = function.split(({"n": 0, "w": jnp.ones(4)}, jnp.ones(8), 0.1), {})
    traced, guessed = trace_guessing(function, call, mesh, None)
    assert guessed == (0,) and len(calls) == 1
    weak = [v.aval.weak_type for v in inner(traced.jaxpr).invars]
    assert weak == [False, False, False, True]
    _, given = trace_guessing(function, call, mesh, (1,))
    assert given == (1,)


def test_strong_strips_the_weak_type() -> None:
    shapes = jax.eval_shape(lambda: strong(jnp.asarray(1.0) * 1))
    assert not shapes.weak_type
