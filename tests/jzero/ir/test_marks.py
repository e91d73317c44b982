"""Where shards of the state go: the forward analysis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec

from jzero.compat.jaxpr import inner
from jzero.ir.bodies import bodies_of
from jzero.ir.marks import (
    Analysis,
    Mark,
    enter_marks,
    leave_mark,
    same_placement,
)
from tests.jzero.ir.jaxprs import DATA, eqn_of, shard, trace
from tests.jzero.passes.steps import line_mesh

W = shard(None, DATA)  # of an (8, 4) array


def outs(function: Callable[..., Any], *marked: Any) -> list[Any]:
    """Dims of each output; arguments are (shape, mark) pairs or bare shapes."""
    pairs = [m if isinstance(m[-1], Mark) else (m, None) for m in marked]
    shapes, marks = zip(*pairs, strict=True)
    flow = Analysis().flow(trace(function, *shapes), marks)
    return [None if m is None else m.dims for m in flow.outs]


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda w: w.astype(jnp.bfloat16), (None, DATA)),
        (lambda w: jnp.tanh(w) * 2 + 1, (None, DATA)),
        (lambda w: w.T, (DATA, None)),
        (lambda w: w[None], (None, None, DATA)),
        (lambda w: w[:2], (None, DATA)),
        (lambda w: w[:, :2], None),
        (lambda w: w.sum(0), (DATA,)),
        (lambda w: w.sum(1), None),
        (lambda w: w.sum(), None),
        (lambda w: w @ w.T, None),
        (lambda w: jnp.sort(w), None),
        (lambda w: w.reshape(-1), None),
        (lambda w: jax.lax.optimization_barrier(w), (None, DATA)),
        (lambda w: jnp.where(w > 0, w, 0.0), (None, DATA)),
        (lambda w: w[0, 0], None),
    ],
)
def test_a_mark_follows_what_works_on_the_shard(
    function: Callable[..., Any], wanted: Any
) -> None:
    assert outs(function, ((8, 4), W)) == [wanted]


def test_the_user_s_own_axis_stays_in_the_base() -> None:
    mark = shard(DATA, "model", base=(None, "model"))
    flow = Analysis().flow(trace(lambda w: (w.T, w.sum(1), w.sum(0)), (8, 4)), [mark])
    turned, rows, columns = flow.outs
    assert turned is not None and rows is not None
    assert (turned.dims, turned.base) == (("model", DATA), ("model", None))
    assert (rows.dims, rows.base) == ((DATA,), (None,))
    assert columns is None  # nothing of the ZeRO axis is left


def test_every_variable_that_is_a_shard_is_known() -> None:
    jaxpr = trace(lambda w, x: (x @ jnp.tanh(w), w.sum()), (8, 4), (2, 8))
    marks = Analysis().flow(jaxpr, [W, None]).marks
    assert set(marks) == {inner(jaxpr).invars[0], eqn_of(jaxpr, "tanh").outvars[0]}


def test_a_chain_of_casts_keeps_its_root() -> None:
    def run(w: jax.Array) -> Any:
        half = checkpoint_name(w.astype(jnp.bfloat16), "kept")
        again = w.astype(jnp.bfloat16)
        wide = half.astype(jnp.float32)
        return half, again, wide, w * 2

    jaxpr = trace(run, (8, 4))
    marks = Analysis().flow(jaxpr, [W]).marks
    half, again, wide, doubled = (marks[v] for v in inner(jaxpr).outvars)
    root = inner(jaxpr).invars[0]
    assert half.key == again.key == (root, ("bfloat16",))
    assert wide.key == (root, ("bfloat16", "float32"))
    assert doubled.key == (inner(jaxpr).outvars[3], ())


def test_branches_must_agree() -> None:
    def run(w: jax.Array, p: jax.Array) -> Any:
        same = jax.lax.cond(p[0] > 0, lambda w: w * 2, lambda w: w, w)
        other = jax.lax.cond(p[0] > 0, lambda w: jnp.sort(w), lambda w: w, w)
        return same, other

    assert outs(run, ((8, 4), W), (1,)) == [(None, DATA), None]


def test_a_scan_unstacks_and_stacks() -> None:
    def run(ws: jax.Array, x: jax.Array) -> Any:
        return jax.lax.scan(lambda x, w: (x, (w * 2, x)), x, ws)

    stacked = ((3, 8, 4), shard(None, None, DATA))
    assert outs(run, stacked, (2,)) == [None, (None, None, DATA), None]


def test_a_sharded_leading_dim_does_not_enter_a_scan() -> None:
    def run(ws: jax.Array) -> Any:
        return jax.lax.scan(lambda x, w: (x, w * 2), 0.0, ws)[1]

    assert outs(run, ((8, 4), shard(DATA, None))) == [None]


def test_a_carry_stays_a_shard_if_every_turn_leaves_it_one() -> None:
    def run(m: jax.Array, xs: jax.Array) -> Any:
        return jax.lax.scan(lambda m, x: (m * 0.9 + x, None), m, xs)[0]

    assert outs(run, ((8, 4), W), (3, 8, 4)) == [(None, DATA)]


@pytest.mark.parametrize(
    "turn", [lambda m: m.T, lambda m: m @ m, lambda m: jnp.sort(m)]
)
def test_a_carry_that_does_not_stay_is_gathered(turn: Callable[..., Any]) -> None:
    run = lambda m: jax.lax.fori_loop(0, 3, lambda _, m: turn(m), m)  # noqa: E731
    assert outs(run, ((8, 8), W)) == [None]


def test_one_unstable_carry_drags_those_that_read_it() -> None:
    def run(a: jax.Array, b: jax.Array, c: jax.Array) -> Any:
        return jax.lax.fori_loop(
            0, 3, lambda _, s: (jnp.sort(s[0]), s[0] * 2, s[2] + 1), (a, b, c)
        )

    square = ((8, 8), W)
    assert outs(run, square, square, square) == [None, None, (None, DATA)]


def test_carries_that_change_places() -> None:
    run = lambda a, b: jax.lax.fori_loop(0, 3, lambda _, s: (s[1], s[0]), (a, b))  # noqa: E731
    assert outs(run, ((8, 8), W), ((8, 8), W)) == [(None, DATA)] * 2
    assert outs(run, ((8, 8), W), ((8, 8), shard(DATA, None))) == [None, None]
    assert outs(run, ((8, 8), W), (8, 8)) == [None, None]


def test_a_while_s_constants_reach_test_and_body() -> None:
    def run(w: jax.Array, x: jax.Array) -> Any:
        return jax.lax.while_loop(
            lambda c: (c * w).sum() < 9, lambda c: c + w * 2, jnp.zeros_like(w)
        ), jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c + x, x)

    jaxpr = trace(run, (8, 4), (2,))
    analysis = Analysis()
    analysis.flow(jaxpr, [W, None])
    eqn = eqn_of(jaxpr, "while")
    body, cond = bodies_of(eqn)
    operands = [W if v is inner(jaxpr).invars[0] else None for v in eqn.invars]
    for part in (body, cond):
        entered = enter_marks(part, operands)
        assert [m is not None for m in entered] == [True, False]
        multiplied = eqn_of(part.jaxpr, "mul").outvars[0]
        assert analysis.flow(part.jaxpr, entered).marks[multiplied].dims == W.dims


@pytest.mark.parametrize(
    "wrap",
    [
        jax.jit,
        jax.checkpoint,
        lambda f: jax.jit(jax.jit(f)),
        lambda f: lambda w: jax.lax.cond(w[0, 0] > 0, f, f, w),
        lambda f: lambda w: jax.lax.fori_loop(0, 2, lambda _, m: f(m), w),
    ],
)
def test_marks_go_through_bodies(wrap: Callable[..., Any]) -> None:
    assert outs(wrap(lambda w: jnp.tanh(w) * 2), ((8, 4), W)) == [(None, DATA)]


def _keys(function: Callable[..., Any], shape: tuple[int, ...], mark: Mark) -> Any:
    """Per output, the casts by which it follows from the input; None if not so."""
    jaxpr = trace(function, shape)
    flow = Analysis().flow(jaxpr, [mark])
    (w,) = inner(jaxpr).invars
    marks = [flow.marks.get(v) for v in inner(jaxpr).outvars]
    return [m.casts if m is not None and m.root is w else None for m in marks]


@pytest.mark.parametrize(
    "wrap", [jax.jit, jax.checkpoint, lambda f: jax.jit(jax.jit(f))]
)
def test_a_cast_that_leaves_a_body_is_still_that_cast(wrap: Callable[..., Any]) -> None:
    half = lambda w: w.astype(jnp.bfloat16)  # noqa: E731
    run = wrap(lambda w: (half(w), half(w).astype(jnp.float32), w * 2, half(w) * 2))
    assert _keys(run, (8, 4), W) == [
        ("bfloat16",),
        ("bfloat16", "float32"),
        None,
        None,
    ]
    cast_before = _keys(lambda w: run(half(w))[1], (8, 4), W)
    assert cast_before == [("bfloat16", "float32")]


def test_slices_that_a_scan_yields_are_those_it_consumed() -> None:
    def run(ws: jax.Array) -> Any:
        def turn(c: jax.Array, w: jax.Array) -> Any:
            return w.astype(jnp.bfloat16), (w.astype(jnp.bfloat16), c, w * 2)

        last, ys = jax.lax.scan(turn, jnp.zeros((8, 4), jnp.bfloat16), ws, reverse=True)
        return last, *ys

    stacked = shard(None, None, DATA)
    assert _keys(run, (3, 8, 4), stacked) == [None, ("bfloat16",), None, None]


def test_what_a_loop_repeats_or_carries_is_another_array() -> None:
    def run(w: jax.Array) -> Any:
        zeros = jnp.zeros((8, 4), jnp.bfloat16)
        half = lambda w: w.astype(jnp.bfloat16)  # noqa: E731
        _, many = jax.lax.scan(lambda c, _: (c + 1, half(w)), 0, None, length=3)
        last = jax.lax.fori_loop(0, 3, lambda _, c: half(w), zeros)
        return many, last

    assert _keys(run, (8, 4), W) == [None, None]


def test_branches_must_agree_on_the_cast_too() -> None:
    def run(w: jax.Array) -> Any:
        half = lambda w: w.astype(jnp.bfloat16)  # noqa: E731
        same = jax.lax.cond(w[0, 0] > 0, half, half, w)
        other = jax.lax.cond(w[0, 0] > 0, half, lambda w: half(w * 2), w)
        return same, other

    assert _keys(run, (8, 4), W) == [("bfloat16",), None]


def test_a_branch_without_state_agrees_if_it_is_placed_alike() -> None:
    mesh = line_mesh()

    def run(w: jax.Array) -> Any:
        def zeros(*spec: str | None) -> Callable[..., Any]:
            place = NamedSharding(mesh, PartitionSpec(*spec))
            return lambda w: jax.lax.with_sharding_constraint(jnp.zeros_like(w), place)

        turned = jax.lax.cond(w[0, 0] > 0, lambda w: w * 2, zeros(DATA), w)
        alike = jax.lax.cond(w[0, 0] > 0, lambda w: w * 2, zeros(None, DATA), w)
        loose = jax.lax.cond(w[0, 0] > 0, lambda w: w * 2, jnp.zeros_like, w)
        only = jax.lax.cond(w[0, 0] > 0, zeros(None, DATA), zeros(None, DATA), w)
        return turned, alike, loose, only

    assert outs(run, ((8, 4), W)) == [None, (None, DATA), None, None]


def test_an_analysis_is_made_once_per_set_of_marks() -> None:
    jaxpr = trace(lambda w: w * 2, (8, 4))
    analysis = Analysis()
    assert analysis.flow(jaxpr, [W]) is analysis.flow(jaxpr, (W,))
    assert analysis.flow(jaxpr, [W]) is not analysis.flow(jaxpr, [None])


def test_same_placement() -> None:
    assert same_placement(W, shard(None, DATA, leaf=7))
    assert not same_placement(W, shard(DATA, None))
    assert not same_placement(W, None)
    assert same_placement(None, None)


def test_leaving_a_loop_stacks() -> None:
    assert leave_mark(W, is_stacked=False) is W
    assert leave_mark(None, is_stacked=True) is None
    left = leave_mark(W, is_stacked=True)
    assert left is not None and left.dims == (None, None, DATA)
