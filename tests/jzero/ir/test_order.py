"""Equations in an order in which each comes after what it reads."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jzero.compat.jaxpr import inner
from jzero.errors import InternalError
from jzero.ir.order import in_order


def eqns_of(function, *args):
    return list(inner(jax.make_jaxpr(function)(*args)).eqns)


def test_an_order_that_is_right_stays() -> None:
    eqns = eqns_of(lambda x: jnp.sin(x) + jnp.cos(x) * 2, 1.0)
    assert in_order(eqns) == eqns


def test_what_is_read_comes_first() -> None:
    eqns = eqns_of(lambda x: jnp.sin(jnp.cos(jnp.tan(x))), 1.0)
    assert in_order(eqns[::-1]) == eqns


def test_effects_keep_their_order() -> None:
    def speak(x):
        jax.debug.print("one {}", x)
        jax.debug.print("two {}", x)
        return x

    eqns = eqns_of(speak, 1.0)
    said = [e for e in in_order(eqns) if e.effects]
    assert said == [e for e in eqns if e.effects]


def test_a_circle_is_an_error_of_ours() -> None:
    first, second = eqns_of(lambda x: jnp.sin(jnp.cos(x)), 1.0)
    circle = [first.replace(invars=second.outvars), second]
    with pytest.raises(InternalError, match="wait for each other"):
        in_order(circle)
