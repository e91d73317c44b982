"""Calls on the way of followed values dissolve; loops and branches stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jzero.compat.jaxpr import inner, jaxpr_callable
from jzero.ir.inline import inline_calls

X = np.arange(6.0, dtype=np.float32).reshape(2, 3)


def inlined(function: Callable[..., Any], *args: Any, followed: tuple[bool, ...]):
    jaxpr = jax.make_jaxpr(function)(*args)
    new = inline_calls(jaxpr, followed)
    np.testing.assert_array_equal(
        jaxpr_callable(new)(*args)[0], jaxpr_callable(jaxpr)(*args)[0]
    )
    return jaxpr, new, [e.primitive.name for e in inner(new).eqns]


def test_a_library_function_dissolves() -> None:
    _, _, names = inlined(lambda x: jnp.where(x > 2, x, 0.0) * 2, X, followed=(True,))
    assert "jit" not in names
    assert "select_n" in names


def test_calls_within_calls_and_one_call_twice() -> None:
    inside = jax.jit(lambda x: jnp.where(x > 1, x, -x))
    outside = jax.jit(lambda x: inside(x) * 2 + inside(x + 1))
    _, _, names = inlined(lambda x: outside(x) - outside(2 * x), X, followed=(True,))
    assert "jit" not in names


def test_what_is_not_followed_stays_a_call() -> None:
    call = jax.jit(lambda x: x * 2)
    jaxpr, new, _ = inlined(lambda x, y: call(y) @ y.T, X, X, followed=(True, False))
    assert new is jaxpr


def test_what_is_multiplied_is_not_followed() -> None:
    call = jax.jit(lambda x: x * 2)
    _, _, names = inlined(lambda x: call(x @ x.T), X, followed=(True,))
    assert "jit" in names


def test_loops_branches_and_blocks_stay() -> None:
    def many(x: jax.Array) -> jax.Array:
        x = jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)
        x = jax.lax.scan(lambda c, _: (c * 2, None), x, None, length=2)[0]
        return jax.checkpoint(jnp.tanh)(x)

    _, _, names = inlined(many, X, followed=(True,))
    assert {"cond", "scan"} <= set(names)


def test_a_call_that_hands_its_input_on() -> None:
    call = jax.jit(lambda x: (x, x * 2))
    _, _, names = inlined(lambda x: call(x)[0] + call(x)[1], X, followed=(True,))
    assert "jit" not in names
