"""nnx objects become states and come back, shared variables and all."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jzero.runtime.mutable import (
    Objects,
    is_mutable,
    merge_states,
    split_states,
    unwrap_nnx_jit,
)


class Tied(nnx.Module):
    def __init__(self, linear: nnx.Linear) -> None:
        self.linear = linear


def linear() -> nnx.Linear:
    return nnx.Linear(4, 4, rngs=nnx.Rngs(0))


def test_what_counts_as_mutable() -> None:
    assert is_mutable(linear()) and is_mutable(nnx.Rngs(0))
    assert not is_mutable({"w": jnp.ones(3)}) and not is_mutable(nnx.State({}))


def test_a_shared_variable_is_held_once_and_stays_shared() -> None:
    shared = linear()
    graphdef, states = split_states((shared, Tied(shared)))
    assert [len(jax.tree.leaves(s)) for s in states] == [2, 0]
    one, other = merge_states(graphdef, states)
    assert other.linear.kernel is one.kernel


def test_a_mutating_function_becomes_pure() -> None:
    model = linear()

    def double(model, factor, *, offset):
        model.bias[...] = model.bias[...] * 0 + factor + offset
        return factor

    objects, args, kwargs = Objects.split((model, 3.0), {"offset": 1.0})
    assert objects is not None
    states, result = jax.jit(objects.pure(double))(*args, **kwargs)
    assert result == 3.0
    assert float(model.bias[...].sum()) == 0.0  # not yet
    objects.update(states)
    assert model.bias[...].tolist() == [4.0] * 4


def test_calls_without_objects_pass_through() -> None:
    assert Objects.split((1, 2), {"a": 3}) == (None, (1, 2), {"a": 3})


def test_a_function_under_nnx_jit_is_taken_out() -> None:
    def step(model):
        return 1

    assert unwrap_nnx_jit(nnx.jit(step)) is step
    assert unwrap_nnx_jit(step) is step
