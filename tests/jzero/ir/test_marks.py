"""Marks follow shards forward, and stop where the whole is needed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jzero.compat.jaxpr import inner
from jzero.ir.marks import Analysis
from tests.jzero.ir.build import mark, scanned, struct, trace

W = mark(None, "data")


def outs(function, shapes, marks):
    return Analysis().flow(trace(function, *shapes), marks).outs


@pytest.mark.parametrize(
    ("function", "dims"),
    (
        (lambda w: jnp.tanh(w.astype(jnp.bfloat16)) * 2, (None, "data")),
        (lambda w: w.T, ("data", None)),
        (lambda w: jax.jit(lambda v: v + 1)(w), (None, "data")),
        (lambda w: jax.checkpoint(lambda v: v + 1)(w), (None, "data")),
        (lambda w: jax.nn.relu(w), (None, "data")),
        (lambda w: jax.lax.cond(w.sum() > 0, lambda v: v, lambda v: -v, w), W.dims),
        (lambda w: jax.lax.fori_loop(0, 3, lambda i, v: v * 2, w), W.dims),
        (lambda w: w @ w.T, None),
        (lambda w: w.sum(), None),
        (lambda w: w.reshape(-1), None),
    ),
)
def test_one_leaf(function, dims) -> None:
    (out,) = outs(function, (struct(8, 16),), (W,))
    assert (None if out is None else out.dims) == dims


def test_casts_share_a_root_and_derived_values_do_not() -> None:
    def function(w):
        one = w.astype(jnp.bfloat16)
        return one, jax.lax.convert_element_type(w, jnp.bfloat16), one * 2

    jaxpr = trace(function, struct(8, 16))
    marks = Analysis().flow(jaxpr, (W,)).marks
    first, second, derived = (marks[v] for v in inner(jaxpr).outvars)
    assert first.key == second.key == (inner(jaxpr).invars[0], ("bfloat16",))
    assert derived.key not in (first.key, marks[inner(jaxpr).invars[0]].key)


def test_a_stacked_weight_is_a_shard_in_every_turn() -> None:
    jaxpr = trace(scanned, struct(3, 8, 8), struct(4, 8))
    analysis = Analysis()
    flow = analysis.flow(jaxpr, (mark(None, None, "data"), None))
    assert flow.outs == (None,)
    inside = analysis.flow(
        next(e for e in inner(jaxpr).eqns if e.primitive.name == "scan").params[
            "jaxpr"
        ],
        (None, mark(None, "data")),
    )
    assert any(m.casts == ("bfloat16",) for m in inside.marks.values())


def test_a_sharded_scan_dim_does_not_enter() -> None:
    (out,) = outs(
        lambda w: jax.lax.scan(lambda c, v: (c, v * 2), 0.0, w)[1],
        (struct(8, 4),),
        (mark("data", None),),
    )
    assert out is None


def test_a_carry_that_is_replaced_is_no_shard() -> None:
    def function(w, x):
        return jax.lax.fori_loop(0, 3, lambda i, c: x @ x, w)

    assert outs(function, (struct(8, 8), struct(8, 8)), (W, None)) == (None,)


def test_user_axes_remain_in_the_base() -> None:
    placed = mark("data", "model").__class__(
        dims=("data", "model"), base=(None, "model"), leaf=0
    )
    (out,) = outs(lambda w: w.T * 2, (struct(8, 8),), (placed,))
    assert (out.dims, out.base) == (("model", "data"), ("model", None))
