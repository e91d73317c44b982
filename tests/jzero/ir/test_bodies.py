"""How operands reach bodies: every slot is checked against the values it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jzero.compat.jaxpr import inner
from jzero.ir.bodies import LOOP_NAMES, REMAT_NAMES, Body, bodies_of, with_bodies
from jzero.ir.edit import Editor
from tests.jzero.ir.jaxprs import eqn_of, trace
from tests.jzero.passes.steps import line_mesh


@jax.custom_jvp
def with_jvp(x: jax.Array, y: jax.Array) -> jax.Array:
    return x * y[:, 0]


with_jvp.defjvp(lambda primals, tangents: (with_jvp(*primals), tangents[0]))


@jax.custom_vjp
def with_vjp(x: jax.Array, y: jax.Array) -> jax.Array:
    return x * y[:, 0]


with_vjp.defvjp(lambda x, y: (with_vjp(x, y), None), lambda _, ct: (ct, None))


def two(function: Callable[..., Any]) -> Any:
    """Traces a function of an (8,) and an (8, 4) array."""
    return trace(function, (8,), (8, 4))


# Primitive -> a program that holds it. All have an (8,) and an (8, 4) operand.
HOLDERS: dict[str, Callable[[Any, Any], Any]] = {
    "scan": lambda x, y: jax.lax.scan(lambda c, s: (c + s.sum(), c), x, y),
    "while": lambda x, y: jax.lax.while_loop(
        lambda c: (c[0].sum() < 1) & (y.sum() > 0),
        lambda c: (c[0] + y[:, 0], c[1]),
        (x, y),
    ),
    "cond": lambda x, y: jax.lax.cond(
        x[0] > 0, lambda a, b: (b, a), lambda a, b: (b * 2, a), x, y
    ),
    "jit": lambda x, y: jax.jit(lambda a, b: (b, a * 2))(x, y),
    "remat2": lambda x, y: jax.checkpoint(lambda a, b: (b * 2, a * 2))(x, y),
    "custom_jvp_call": with_jvp,
    "custom_vjp_call": with_vjp,
}


def _held(name: str) -> tuple[Any, tuple[Body, ...]]:
    jaxpr = two(HOLDERS[name])
    names = ("remat2", "checkpoint") if name == "remat2" else (name,)
    eqn = next(e for e in jaxpr.eqns if e.primitive.name in names)
    return eqn, bodies_of(eqn)


@pytest.mark.parametrize("name", HOLDERS)
def test_slots_name_operands_and_results_of_fitting_shape(name: str) -> None:
    eqn, bodies = _held(name)
    assert bodies
    for body in bodies:
        jaxpr = inner(body.jaxpr)
        for slot, var in zip(body.ins, jaxpr.invars, strict=True):
            outer = eqn.invars[slot.index].aval.shape
            assert var.aval.shape == (outer[1:] if slot.is_stacked else outer)
        for slot, var in zip(body.outs, jaxpr.outvars, strict=True):
            if slot.index >= 0:
                outer = eqn.outvars[slot.index].aval.shape
                assert var.aval.shape == (outer[1:] if slot.is_stacked else outer)
        for position, out in body.carries:
            assert jaxpr.invars[position].aval == jaxpr.outvars[out].aval


@pytest.mark.parametrize("name", HOLDERS)
def test_a_replaced_body_is_the_one_that_runs(name: str) -> None:
    eqn, bodies = _held(name)
    new = [Editor(line_mesh()) for _ in bodies]
    jaxprs = []
    for editor, body in zip(new, bodies, strict=True):
        for inner_eqn in inner(body.jaxpr).eqns:
            editor.copy(inner_eqn)
        tied = editor.tie(inner(body.jaxpr).invars[0], like=None, scope="test")
        assert tied
        jaxprs.append(editor.finish(body.jaxpr))
    params = with_bodies(eqn, bodies, jaxprs)
    again = bodies_of(eqn.replace(params=params))
    assert [b.jaxpr for b in again] == jaxprs
    assert {k for k in params if params[k] is not eqn.params[k]} == {
        b.param for b in bodies
    }


def test_scan_tells_constants_carries_and_rows_apart() -> None:
    jaxpr = trace(
        lambda k, c, xs: jax.lax.scan(lambda c, x: (c + k * x, (x * 2, c)), c, xs),
        (4,),
        (4,),
        (8, 4),
    )
    (body,) = bodies_of(eqn_of(jaxpr, "scan"))
    assert [(s.index, s.is_stacked) for s in body.ins] == [
        (0, False),
        (1, False),
        (2, True),
    ]
    assert [(s.index, s.is_stacked) for s in body.outs] == [
        (0, False),
        (1, True),
        (2, True),
    ]
    assert body.carries == ((1, 0),)


def test_while_shares_its_carries_between_test_and_body() -> None:
    eqn, (body, cond) = _held("while")
    assert (body.param, cond.param) == ("body_jaxpr", "cond_jaxpr")
    shared = {s.index for s in body.ins} & {s.index for s in cond.ins}
    assert shared == set(range(len(eqn.invars) - len(eqn.outvars), len(eqn.invars)))
    assert [s.index for s in cond.outs] == [-1]
    assert len(body.carries) == len(eqn.outvars)


def test_a_branch_does_not_see_the_index() -> None:
    _, bodies = _held("cond")
    assert [b.position for b in bodies] == [0, 1]
    assert 0 not in {s.index for b in bodies for s in b.ins}


def test_bodies_that_nobody_may_walk_into_are_opaque() -> None:
    mesh = line_mesh()
    spec = jax.sharding.PartitionSpec()
    region = jax.shard_map(jnp.sin, mesh=mesh, in_specs=spec, out_specs=spec)
    solve = trace(
        lambda b: jax.lax.custom_linear_solve(
            lambda v: 2 * v, b, lambda _, v: v / 2, symmetric=True
        ),
        (4,),
    )
    assert bodies_of(eqn_of(trace(region, (8,)), "shard_map")) == ()
    assert bodies_of(eqn_of(solve, "custom_linear_solve")) == ()
    assert bodies_of(eqn_of(trace(jnp.sin, (4,)), "sin")) == ()


def test_names_of_loops_and_remat() -> None:
    assert {"scan", "while"} == LOOP_NAMES
    remat = two(HOLDERS["remat2"]).eqns[0].primitive.name
    assert remat in REMAT_NAMES
