"""Slots connect bodies to equations; other bodies keep the equation's meaning."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jzero.compat.jaxpr import inner, jaxpr_callable, rebuild
from jzero.ir.bodies import bodies_of, with_bodies
from tests.jzero.ir.build import struct, trace


def only_eqn(function, *shapes):
    (eqn,) = [e for e in inner(trace(function, *shapes)).eqns if bodies_of(e)]
    return eqn


def test_scan_slots() -> None:
    def function(w, c, xs):
        return jax.lax.scan(lambda c, x: (c @ w + x, c.sum()), c, xs)

    eqn = only_eqn(function, struct(4, 4), struct(2, 4), struct(3, 2, 4))
    (body,) = bodies_of(eqn)
    assert [(s.index, s.is_stacked) for s in body.ins] == [
        (0, False),
        (1, False),
        (2, True),
    ]
    assert [(s.index, s.is_stacked) for s in body.outs] == [(0, False), (1, True)]
    assert body.carries == ((1, 0),)


def test_while_has_a_body_and_a_condition() -> None:
    def function(w, x, n):
        return jax.lax.while_loop(
            lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] @ w), (0, x)
        )

    body, cond = bodies_of(only_eqn(function, struct(4, 4), struct(2, 4), struct()))
    assert body.param == "body_jaxpr" and len(body.carries) == 2
    assert cond.param == "cond_jaxpr" and cond.outs[0].index == -1
    carried = {body.ins[i].index for i, _ in body.carries}
    assert {s.index for s in cond.ins} - carried  # the limit is a constant


def test_cond_branches_share_operands() -> None:
    def function(w, x):
        return jax.lax.cond(x.sum() > 0, lambda a: a + 1, lambda a: a * 2, w)

    one, two = bodies_of(only_eqn(function, struct(4), struct(4)))
    assert one.ins == two.ins
    assert (one.position, two.position) == (0, 1)


def test_opaque_equations_have_no_bodies() -> None:
    def function(x):
        return jax.lax.custom_root(
            lambda v: v - x, x, lambda f, v: v, lambda g, y: y / g(1.0)
        )

    eqns = inner(trace(function, struct())).eqns
    assert all(not bodies_of(e) for e in eqns if e.primitive.name == "custom_root")


def test_new_bodies_of_one_signature_take_effect() -> None:
    def function(x):
        return jax.lax.cond(x.sum() > 0, lambda a: a + 1, lambda a: a * 2, x)

    jaxpr = trace(function, struct(4))
    eqns = []
    for eqn in inner(jaxpr).eqns:
        bodies = bodies_of(eqn)
        if bodies:
            swapped = [b.jaxpr for b in reversed(bodies)]
            eqn = eqn.replace(params=with_bodies(eqn, bodies, swapped))
        eqns.append(eqn)
    run = jaxpr_callable(rebuild(jaxpr, eqns=eqns))
    np.testing.assert_array_equal(run(jnp.ones(4))[0], 2 * np.ones(4))
    np.testing.assert_array_equal(run(-jnp.ones(4))[0], np.zeros(4))
