"""One spelling of jaxprs, on whatever JAX is installed."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jzero.compat.jaxpr import (
    fresh_var,
    inner,
    is_jaxpr,
    is_var,
    jaxpr_callable,
    rebuild,
    scan_counts,
)


def closed():
    return jax.make_jaxpr(lambda x: (x + 1, x * 2))(jnp.ones(3))


def test_rebuilding_keeps_the_kind_and_takes_the_change() -> None:
    jaxpr = closed()
    body = inner(jaxpr)
    swapped = rebuild(jaxpr, eqns=body.eqns, outvars=body.outvars[::-1])
    assert type(swapped) is type(jaxpr)
    assert jaxpr_callable(swapped)(jnp.ones(3))[0].tolist() == [2, 2, 2]
    inside = rebuild(body, eqns=body.eqns[:1], outvars=body.outvars[:1])
    assert type(inside) is type(body)
    assert len(inside.eqns) == 1


def test_consts_survive_a_rebuild() -> None:
    table = jnp.arange(3.0)
    jaxpr = jax.make_jaxpr(lambda x: x + table)(jnp.ones(3))
    again = rebuild(jaxpr, eqns=inner(jaxpr).eqns)
    assert jaxpr_callable(again)(jnp.ones(3))[0].tolist() == [1, 2, 3]


def test_scan_counts() -> None:
    def function(w, c, xs):
        return jax.lax.scan(lambda c, x: (c @ w + x, None), c, xs)

    args = (jnp.ones((4, 4)), jnp.ones((2, 4)), jnp.ones((3, 2, 4)))
    (eqn,) = inner(jax.make_jaxpr(function)(*args)).eqns
    assert scan_counts(eqn.params) == (1, 1)
    assert is_jaxpr(eqn.params["jaxpr"])


def test_variables_and_literals() -> None:
    eqn = inner(closed()).eqns[0]
    assert [is_var(a) for a in eqn.invars] == [True, False]
    assert fresh_var(eqn.invars[0].aval) is not eqn.invars[0]
