"""What a jitted function says about itself."""

from __future__ import annotations

import functools

import jax

from jzero.compat.jit import is_jitted, unwrap_jit


def step(a, b, mode="x"):
    return a, b, mode


def test_statics_of_nested_jits_are_joined() -> None:
    one = functools.partial(jax.jit, static_argnames="mode")(step)
    two = functools.partial(jax.jit, static_argnums=1)(one)
    assert is_jitted(two)
    function, nums, names = unwrap_jit(two)
    assert function is step
    assert 1 in nums and 2 in nums
    assert "mode" in names


def test_a_plain_function_is_itself() -> None:
    assert not is_jitted(step)
    assert unwrap_jit(step) == (step, (), ())
