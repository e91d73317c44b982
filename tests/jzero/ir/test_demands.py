"""Which values are wanted as shards: the backward analysis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jzero.compat.jaxpr import AnyJaxpr, inner
from jzero.ir.bodies import bodies_of
from jzero.ir.demands import Demands, Wanted, meeting_dims, same_shape
from jzero.ir.marks import Analysis, Mark
from tests.jzero.ir.jaxprs import DATA, all_of, eqn_of, shard, trace

W = shard(None, DATA)
SHARD = (None, DATA)
TURNED = (DATA, None)


def demands_of(
    jaxpr: AnyJaxpr,
    marks: Sequence[Mark | None],
    outs: Sequence[Any] | None = None,
) -> tuple[Demands, Wanted]:
    demands = Demands(Analysis())
    out_dims = outs or [None] * len(inner(jaxpr).outvars)
    return demands, demands.of(jaxpr, marks, out_dims)


def births(jaxpr: AnyJaxpr, wanted: Wanted, name: str) -> list[Any]:
    """Dims wanted of the first result of every equation of one primitive."""
    return [
        wanted.dims.get(e.outvars[0])
        for e in inner(jaxpr).eqns
        if e.primitive.name == name
    ]


def test_what_meets_a_shard_is_wanted_as_one() -> None:
    def step(w: jax.Array, x: jax.Array) -> Any:
        return w - 0.1 * (x.T @ x)

    jaxpr = trace(step, (8, 8), (2, 8))
    _, wanted = demands_of(jaxpr, [W, None])
    assert births(jaxpr, wanted, "dot_general") == [SHARD]
    assert wanted.ins == (None, None)


@pytest.mark.parametrize(
    ("between", "at_birth"),
    [
        (lambda g: g.astype(jnp.float32), SHARD),
        (lambda g: jnp.clip(g.astype(jnp.float32), -1, 1) * 2, SHARD),
        (lambda g: g.T.astype(jnp.float32), TURNED),
        (lambda g: jax.lax.optimization_barrier(g).astype(jnp.float32), SHARD),
        (lambda g: jax.jit(lambda g: g.astype(jnp.float32) * 2)(g), SHARD),
        (lambda g: jax.checkpoint(lambda g: g.T.astype(jnp.float32))(g), TURNED),
        (lambda g: jnp.sort(g.astype(jnp.float32)), None),
    ],
)
def test_a_demand_goes_back_to_the_birth(
    between: Callable[..., Any], at_birth: Any
) -> None:
    def step(w: jax.Array, x: jax.Array) -> Any:
        h = x.astype(jnp.bfloat16)
        return w - between(h.T @ h)

    jaxpr = trace(step, (8, 8), (2, 8))
    _, wanted = demands_of(jaxpr, [W, None])
    assert births(jaxpr, wanted, "dot_general") == [at_birth]


def test_an_output_that_must_be_a_shard_is_wanted() -> None:
    jaxpr = trace(lambda x: (x.T @ x * 2, x.T @ x * 3), (2, 8))
    _, wanted = demands_of(jaxpr, [None], [SHARD, None])
    assert births(jaxpr, wanted, "dot_general") == [SHARD, None]


def test_scalars_and_other_shapes_are_left_alone() -> None:
    def step(w: jax.Array, x: jax.Array) -> Any:
        norm = jnp.sqrt((x**2).sum())
        return w * norm, x * norm

    jaxpr = trace(step, (8, 8), (2, 8))
    _, wanted = demands_of(jaxpr, [W, None])
    assert not wanted.dims


def test_a_shard_is_not_wanted_of_a_shard() -> None:
    jaxpr = trace(lambda w, m: w - 0.1 * (0.9 * m + w), (8, 8), (8, 8))
    _, wanted = demands_of(jaxpr, [W, shard(*TURNED)])
    assert not wanted.dims


def test_an_accumulator_is_a_shard_in_every_turn() -> None:
    def step(w: jax.Array, xs: jax.Array) -> Any:
        turn = lambda g, x: (g + x.T @ x, None)  # noqa: E731
        g, _ = jax.lax.scan(turn, jnp.zeros((8, 8)), xs)
        return w - g

    jaxpr = trace(step, (8, 8), (4, 2, 8))
    demands, wanted = demands_of(jaxpr, [W, None])
    scan = eqn_of(jaxpr, "scan")
    assert wanted.dims[scan.outvars[0]] == SHARD
    assert births(jaxpr, wanted, "broadcast_in_dim") == [SHARD]  # the zeros
    entered = demands.enter(scan, bodies_of(scan), [None, None], [SHARD])
    assert entered.operands == (SHARD, None)
    (body,) = bodies_of(scan)
    inside = demands.of(body.jaxpr, [None, None], entered.out_dims[0])
    assert births(body.jaxpr, inside, "dot_general") == [SHARD]


def test_a_carry_that_meets_a_shard_only_inside_is_wanted_outside() -> None:
    def step(w: jax.Array, x: jax.Array) -> Any:
        g = x.T @ x
        return jax.lax.fori_loop(0, 3, lambda _, g: g + w, g)

    jaxpr = trace(step, (8, 8), (2, 8))
    _, wanted = demands_of(jaxpr, [W, None])
    assert births(jaxpr, wanted, "dot_general") == [SHARD]


def test_stacked_gradients_of_a_scan_are_wanted_unstacked_inside() -> None:
    def step(ws: jax.Array, xs: jax.Array) -> Any:
        _, gs = jax.lax.scan(lambda c, x: (c + 1, x.T @ x), 0.0, xs)
        return ws - gs

    jaxpr = trace(step, (4, 8, 8), (4, 2, 8))
    demands, wanted = demands_of(jaxpr, [shard(None, *SHARD), None])
    scan = eqn_of(jaxpr, "scan")
    assert wanted.dims[scan.outvars[1]] == (None, *SHARD)
    entered = demands.enter(scan, bodies_of(scan), [None, None], [None, (None, *SHARD)])
    assert entered.out_dims == ((None, SHARD),)


def test_branches_want_what_their_results_are_wanted_as() -> None:
    def step(w: jax.Array, x: jax.Array) -> Any:
        g = jax.lax.cond(x[0, 0] > 0, lambda x: x.T @ x, lambda x: jnp.zeros((8, 8)), x)
        return w - g

    jaxpr = trace(step, (8, 8), (2, 8))
    demands, wanted = demands_of(jaxpr, [W, None])
    cond = eqn_of(jaxpr, "cond")
    assert wanted.dims[cond.outvars[0]] == SHARD
    entered = demands.enter(cond, bodies_of(cond), [None, None], [SHARD])
    assert entered.out_dims == ((SHARD,), (SHARD,))


def test_a_demand_from_within_a_branch_reaches_the_operand() -> None:
    def step(w: jax.Array, x: jax.Array) -> Any:
        g = x.T @ x
        return jax.lax.cond(x[0, 0] > 0, lambda w, g: w - g, lambda w, g: w, w, g)

    jaxpr = trace(step, (8, 8), (2, 8))
    _, wanted = demands_of(jaxpr, [W, None])
    assert births(jaxpr, wanted, "dot_general") == [SHARD]


def test_gradients_of_a_rematerialized_layer_are_found() -> None:
    def step(w: jax.Array, x: jax.Array) -> Any:
        layer = jax.checkpoint(lambda w, x: jnp.tanh(x @ w.astype(jnp.bfloat16)))
        loss = lambda w: layer(w, x).astype(jnp.float32).sum()  # noqa: E731
        return w - jax.grad(loss)(w)

    half = jax.ShapeDtypeStruct((2, 8), jnp.bfloat16)
    jaxpr = trace(step, (8, 8), half)
    demands, wanted = demands_of(jaxpr, [W, None])
    backward = [
        e for e in inner(jaxpr).eqns if bodies_of(e) and e.params.get("differentiated")
    ]
    assert len(backward) == 1
    grad = next(v for v in backward[0].outvars if v.aval.shape == (8, 8))
    assert wanted.dims[grad] == SHARD
    outs = [wanted.dims.get(v) for v in backward[0].outvars]
    marks = [W if v is inner(jaxpr).invars[0] else None for v in backward[0].invars]
    entered = demands.enter(backward[0], bodies_of(backward[0]), marks, outs)
    (body,) = bodies_of(backward[0])
    inside = demands.of(body.jaxpr, list(entered.marks), entered.out_dims[0])
    born = [
        inside.dims.get(e.outvars[0])
        for e in all_of(body.jaxpr, "dot_general")
        if e.outvars[0].aval.shape == (8, 8)
    ]
    assert born == [TURNED]  # the weight's gradient is transposed after its birth


def test_the_first_demand_wins() -> None:
    def step(v: jax.Array, w: jax.Array, x: jax.Array) -> Any:
        g = x.T @ x
        return v - g, w - g

    jaxpr = trace(step, (8, 8), (8, 8), (2, 8))
    _, wanted = demands_of(jaxpr, [W, shard(*TURNED), None])
    assert births(jaxpr, wanted, "dot_general") == [SHARD]


def test_dropped_results_are_not_wanted() -> None:
    def step(w: jax.Array, x: jax.Array) -> Any:
        a, _ = jax.jit(lambda w, x: (x @ w, w - x.T @ x))(w, x)
        return a

    jaxpr = trace(step, (8, 8), (2, 8))
    demands, wanted = demands_of(jaxpr, [W, None])
    assert not wanted.dims
    assert demands.of(jaxpr, [W, None], [None]) is wanted


def test_where_shards_meet() -> None:
    jaxpr = trace(lambda w, x: w + x, (8, 8), (8, 8))
    (add,) = inner(jaxpr).eqns
    w, x = inner(jaxpr).invars
    assert meeting_dims(add, {x: shard(*TURNED)}) == TURNED
    assert meeting_dims(add, {w: W, x: shard(*TURNED)}) == SHARD
    assert meeting_dims(add, {}) is None
    assert same_shape(w, add.outvars[0])
    assert not same_shape(None, add.outvars[0])
