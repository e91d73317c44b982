"""Gradients are wanted as shards where they meet one, back to their birth."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jzero.compat.jaxpr import inner
from jzero.ir.demands import Demands
from jzero.ir.marks import Analysis
from tests.jzero.ir.build import mark, struct, trace

W = mark(None, "data")
SQUARE = struct(8, 8)


def wanted_names(function, shapes, marks, out_dims=None) -> list[str]:
    """Primitives whose results are wanted as shards, in program order."""
    jaxpr = trace(function, *shapes)
    outs = out_dims or (None,) * len(inner(jaxpr).outvars)
    dims = Demands(Analysis()).of(jaxpr, marks, outs).dims
    return [
        e.primitive.name for e in inner(jaxpr).eqns if any(v in dims for v in e.outvars)
    ]


def test_a_gradient_is_wanted_from_its_dot_through_casts() -> None:
    def function(w, x):
        grad = (x.T @ x).astype(jnp.bfloat16).astype(jnp.float32)
        return w - 0.1 * grad

    names = wanted_names(function, (SQUARE, SQUARE), (W, None))
    assert names[:2] == ["dot_general", "convert_element_type"] or names[1] == (
        "dot_general"
    )
    assert "mul" in names


def test_nothing_is_wanted_without_a_shard() -> None:
    assert wanted_names(lambda w, x: w - x, (SQUARE, SQUARE), (None, None)) == []


def test_an_accumulator_is_wanted_before_inside_and_after_its_loop() -> None:
    def function(w, xs):
        zeros = jnp.zeros((8, 8))
        total, _ = jax.lax.scan(lambda c, x: (c + x.T @ x, None), zeros, xs)
        return w - total

    jaxpr = trace(function, SQUARE, struct(3, 4, 8))
    demands = Demands(Analysis())
    dims = demands.of(jaxpr, (W, None), (None,)).dims
    by_name = {e.primitive.name: e for e in inner(jaxpr).eqns}
    scan = by_name["scan"]
    assert dims[by_name["broadcast_in_dim"].outvars[0]] == W.dims
    assert dims[scan.outvars[0]] == W.dims
    found = demands.of(scan.params["jaxpr"], (None, None), (W.dims,))
    assert found.ins[0] == W.dims
    dots = [e for e in inner(scan.params["jaxpr"]).eqns if "dot" in e.primitive.name]
    assert all(e.outvars[0] in found.dims for e in dots)


def test_gradients_meet_state_inside_a_branch() -> None:
    def function(w, g):
        grad = g.T @ g
        return jax.lax.cond(g.sum() > 0, lambda w, d: w - d, lambda w, d: w, w, grad)

    assert "dot_general" in wanted_names(function, (SQUARE, SQUARE), (W, None))


def test_stacked_gradients_of_a_scanned_layer() -> None:
    def function(w, xs):
        return w - jax.lax.scan(lambda c, x: (c, x.T @ x), 0.0, xs)[1]

    names = wanted_names(
        function,
        (struct(3, 8, 8), struct(3, 4, 8)),
        (mark(None, None, "data"), None),
    )
    assert "scan" in names


def test_outputs_may_want_too() -> None:
    names = wanted_names(
        lambda x: (x.T @ x) * 2, (SQUARE,), (None,), out_dims=(("data", None),)
    )
    assert names[-2:] == ["dot_general", "mul"]
