"""One spelling of jaxprs in every supported version of JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jzero.compat.jaxpr import (
    fresh_var,
    inner,
    is_jaxpr,
    is_var,
    jaxpr_callable,
    rebuild,
    scan_counts,
)


def _trace(function: Any) -> Any:
    return jax.make_jaxpr(function)(jnp.ones((4,)), jnp.ones((3, 4)))


def test_inner_holds_the_equations() -> None:
    jaxpr = _trace(lambda x, y: jax.jit(lambda x: x * 2)(x) + y[0])
    assert inner(inner(jaxpr)) is inner(jaxpr)
    assert len(inner(jaxpr).eqns) == 4


def test_jaxprs_are_told_from_other_parameters() -> None:
    jaxpr = _trace(lambda x, y: jax.lax.scan(lambda c, y: (c + y, None), x, y)[0])
    (eqn,) = jaxpr.eqns
    assert {k for k, v in eqn.params.items() if is_jaxpr(v)} == {"jaxpr"}
    assert is_jaxpr(jaxpr) and is_jaxpr(inner(jaxpr))
    remat = _trace(lambda x, y: jax.checkpoint(jnp.sin)(x))
    assert is_jaxpr(remat.eqns[0].params["jaxpr"])


def test_literals_are_not_variables() -> None:
    jaxpr = _trace(lambda x, y: (x * 2.0, 1.0))
    x, two = inner(jaxpr).eqns[0].invars
    assert is_var(x) and not is_var(two)
    assert not is_var(inner(jaxpr).outvars[1])


def test_a_fresh_variable_is_nobody_else_s() -> None:
    jaxpr = _trace(lambda x, y: x * 2.0)
    (x, _) = inner(jaxpr).invars
    new = fresh_var(x.aval)
    assert new is not x and new != x
    assert new.aval == x.aval


@pytest.mark.parametrize("is_open", [False, True])
def test_rebuilding_keeps_kind_consts_effects_and_debug_info(is_open: bool) -> None:
    table = np.arange(4.0, dtype=np.float32)

    def function(x: jax.Array, y: jax.Array) -> Any:
        jax.debug.callback(lambda v: None, x)
        return x + jnp.asarray(table), y

    jaxpr = _trace(function)
    given = inner(jaxpr) if is_open else jaxpr
    new = rebuild(given, eqns=inner(given).eqns, outvars=inner(given).outvars[::-1])
    assert type(new) is type(given)
    assert inner(new).effects == inner(given).effects != set()
    source = inner(given).debug_info.func_src_info
    assert inner(new).debug_info.func_src_info == source
    assert inner(new).constvars == inner(given).constvars
    assert inner(new).invars == inner(given).invars
    assert inner(new).outvars == inner(given).outvars[::-1]
    if not is_open:
        assert new.consts is jaxpr.consts or new.consts == jaxpr.consts
        y, x = jaxpr_callable(new)(jnp.ones(4), jnp.ones((3, 4)))
        np.testing.assert_array_equal(x, 1 + table)
        assert y.shape == (3, 4)


def test_rebuilding_can_replace_inputs_and_equations() -> None:
    jaxpr = _trace(lambda x, y: x * 2.0)
    body = inner(jaxpr)
    x = fresh_var(body.invars[0].aval)
    (eqn,) = body.eqns
    new = rebuild(
        jaxpr,
        eqns=[eqn.replace(invars=[x, eqn.invars[1]])],
        invars=[x, body.invars[1]],
    )
    (doubled,) = jaxpr_callable(new)(jnp.ones(4), jnp.ones((3, 4)))
    assert doubled[0] == 2.0


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda x, y: jax.lax.scan(lambda c, r: (c + r, None), x, y), (0, 1)),
        (lambda x, y: jax.lax.scan(lambda c, r: (c + r * x, c), x, y), (1, 1)),
        (lambda x, y: jax.lax.map(lambda r: r * x + y[0], y), (2, 0)),
        (
            lambda x, y: jax.lax.scan(lambda c, _: ((c[1], c[0]), None), (x, x), y),
            (0, 2),
        ),
    ],
)
def test_counts_of_a_scan(function: Any, wanted: tuple[int, int]) -> None:
    scans = [e for e in _trace(function).eqns if e.primitive.name == "scan"]
    assert scan_counts(scans[0].params) == wanted


def test_a_program_is_callable() -> None:
    run = jaxpr_callable(_trace(lambda x, y: {"a": x * 2, "b": y.sum()}))
    doubled, total = run(jnp.ones(4), jnp.ones((3, 4)))
    assert (doubled[0], total) == (2.0, 12.0)
