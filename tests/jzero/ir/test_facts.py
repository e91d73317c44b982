"""What planning learns from a program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jzero.ir.facts import (
    constrained_outputs,
    count_turns,
    scanned_inputs,
    stacked_outputs,
)
from tests.jzero.ir.jaxprs import trace
from tests.jzero.passes.steps import line_mesh


def _turn(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
    return x * w, None


def test_what_a_scan_consumes_is_scanned() -> None:
    def run(ws: jax.Array, const: jax.Array, x: jax.Array) -> Any:
        return jax.lax.scan(lambda x, w: (x * w + const, None), x, ws)

    assert scanned_inputs(trace(run, (3, 4), (4,), (4,))) == (True, False, False)


def test_casts_arithmetic_and_calls_do_not_hide_a_scan() -> None:
    def run(ws: jax.Array, x: jax.Array) -> Any:
        ws = jnp.tanh(ws.astype(jnp.bfloat16) * 2)
        body = jax.jit(lambda ws, x: jax.lax.scan(_turn, x, ws))
        return jax.checkpoint(body)(ws, x.astype(jnp.bfloat16))

    assert scanned_inputs(trace(run, (3, 4), (4,))) == (True, False)


def test_a_scan_within_a_scan_consumes_both() -> None:
    def run(rows: jax.Array, ws: jax.Array, x: jax.Array) -> Any:
        inside = lambda x, row: (jax.lax.scan(_turn, x + row, ws)[0], None)  # noqa: E731
        return jax.lax.scan(inside, x, rows)

    assert scanned_inputs(trace(run, (5, 4), (3, 4), (4,))) == (True, True, False)


def test_a_scalar_beside_a_scanned_array_is_not_scanned() -> None:
    run = lambda ws, s, x: jax.lax.scan(_turn, x, ws * s)  # noqa: E731
    assert scanned_inputs(trace(run, (3, 4), (), (4,))) == (True, False, False)


def test_the_gradient_of_a_scanned_model_scans_its_layers() -> None:
    def run(ws: jax.Array, x: jax.Array) -> Any:
        loss = lambda ws: jax.lax.scan(_turn, x, ws)[0].sum()  # noqa: E731
        return ws - jax.grad(loss)(ws)

    assert scanned_inputs(trace(run, (3, 4), (4,))) == (True, False)


def test_turns_of_loops_that_use_an_input_whole_multiply() -> None:
    def run(w: jax.Array, ws: jax.Array, b: jax.Array, xs: jax.Array) -> Any:
        def loss(w: jax.Array, ws: jax.Array, x: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda x, v: (jnp.tanh(x @ v), None), x @ w, ws)[0]

        def add(total: Any, x: jax.Array) -> tuple[Any, None]:
            both = jax.grad(lambda *p: loss(*p, x).sum(), argnums=(0, 1))(w, ws)
            return jax.tree.map(jnp.add, total, both), None

        half = w.astype(jnp.bfloat16)
        zeros = jax.tree.map(jnp.zeros_like, (w, ws))
        (dw, dws), _ = jax.jit(lambda xs: jax.lax.scan(add, zeros, xs))(xs)
        return w - dw, ws - dws, b * 2, half @ half

    # Five micro-batches; the three layers of ws are used one by one.
    turns = count_turns(trace(run, (4, 4), (3, 4, 4), (4,), (5, 2, 4)))
    assert turns == (5, 5, 0, 1)


def test_what_a_scan_stacks_is_stacked() -> None:
    def create(x: jax.Array) -> Any:
        _, ws = jax.lax.scan(lambda c, _: (c + 1, c * 2), x, None, length=3)
        return {"direct": ws, "cast": ws.astype(jnp.bfloat16) * 2, "other": x}

    jaxpr = trace(create, (4,))
    assert stacked_outputs(jaxpr) == (True, True, False)


def test_stacks_are_seen_through_calls_and_constraints() -> None:
    sharding = NamedSharding(line_mesh(), P())

    def create(x: jax.Array) -> Any:
        ws = jax.lax.map(lambda i: x + i, jnp.arange(3.0))
        call = jax.jit(lambda ws, x: (ws * 2, x))
        ws, y = call(jax.lax.with_sharding_constraint(ws, sharding), x)
        zeros = jnp.zeros_like(ws)  # nothing is known of these
        return ws, y, zeros, jax.jit(lambda x: jax.lax.map(jnp.sin, x))(ws)

    assert stacked_outputs(trace(create, (4,))) == (True, False, False, True)


def test_a_constraint_of_the_user_is_found_on_an_output() -> None:
    mesh = line_mesh()

    def put(x: jax.Array, *spec: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def create(x: jax.Array) -> Any:
        w = put(x, None, "data")
        called = jax.jit(lambda x: put(x, "data"))(x)
        stacked = jax.lax.map(lambda s: put(x * s, "data", None), jnp.arange(3.0))
        return w * 2, called, stacked, x, w + put(x, "data"), w.T

    specs = constrained_outputs(trace(create, (8, 8)))
    assert specs == (
        P(None, "data"),
        P("data"),
        P(None, "data", None),
        None,
        P(None, "data"),
        None,
    )
