"""Which dim of each value runs over the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jzero.compat.jaxpr import inner
from jzero.ir.batch_dims import BatchDims, read_dims
from jzero.ir.bodies import bodies_of
from tests.jzero.ir.jaxprs import eqn_of, trace

B = 16


def dims_of(function: Callable[..., Any], *shapes: Any, rows: Any = (0,)) -> list[Any]:
    """Batch dim of each output; the first inputs have theirs at `rows`."""
    jaxpr = trace(function, *shapes)
    ins = [*rows, *[None] * (len(shapes) - len(rows))]
    found = BatchDims().of(jaxpr, ins)
    return [found.get(v) for v in inner(jaxpr).outvars]


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda x, w: x @ w, 0),
        (lambda x, w: w @ x.T, 1),
        (lambda x, w: jnp.einsum("bi,bj->bij", x, x), 0),
        (lambda x, w: jnp.einsum("bi,bj->ij", x, x), None),
        (lambda x, w: x.T, 1),
        (lambda x, w: jnp.tanh(x) * 2 + 1, 0),
        (lambda x, w: x.sum(1), 0),
        (lambda x, w: x.sum(0), None),
        (lambda x, w: x.T.sum(0), 0),
        (lambda x, w: x.reshape(4, 4, 8), 0),
        (lambda x, w: x.reshape(B, 2, 4), 0),
        (lambda x, w: x.reshape(B * 8), 0),
        (lambda x, w: x.T.reshape(2, 4, B), 2),
        (lambda x, w: x.reshape(2, 64), 0),
        (lambda x, w: x[None, :, None], 1),
        (lambda x, w: jnp.broadcast_to(x[:, None], (B, 5, 8)), 0),
        (lambda x, w: jnp.concatenate([x, x], 1), 0),
        (lambda x, w: jnp.concatenate([x, x], 0), None),
        (lambda x, w: jnp.cumsum(x, 1), 0),
        (lambda x, w: jnp.sort(x, 1), 0),
        (lambda x, w: x[:, 2:4], 0),
        (lambda x, w: x[2:4], None),
        (lambda x, w: jnp.argmax(x, 1), 0),
        (lambda x, w: jnp.pad(x, ((0, 0), (1, 1))), 0),
        (lambda x, w: jnp.fft.fft(w), None),
        (lambda x, w: jnp.linalg.cholesky(x[:8] @ w), None),
        (lambda x, w: w * 2, None),
        (lambda x, w: jax.lax.optimization_barrier((w, x))[1], 0),
        (lambda x, w: jax.jit(lambda w, x: x @ w)(w, x), 0),
        (lambda x, w: jax.checkpoint(lambda w, x: (x @ w).T)(w, x), 1),
        (lambda x, w: jax.lax.cond(w[0, 0] > 0, jnp.sin, jnp.cos, x), 0),
    ],
)
def test_rows_are_followed(function: Callable[..., Any], wanted: int | None) -> None:
    assert dims_of(function, (B, 8), (8, 8)) == [wanted]


def test_a_lookup_has_the_rows_of_its_indices() -> None:
    ids = jax.ShapeDtypeStruct((B, 5), jnp.int32)
    assert dims_of(lambda ids, table: table[ids], ids, (32, 8)) == [0]
    assert dims_of(lambda ids, t: t[ids[:, 0]].T, ids, (32, 8)) == [1]


def test_a_convolution_keeps_its_images() -> None:
    def convolve(x: jax.Array, k: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    assert dims_of(convolve, (B, 6, 6, 4), (3, 3, 4, 8)) == [0]


def test_gradients_of_activations_keep_the_rows_and_those_of_weights_do_not() -> None:
    def grads(x: jax.Array, w: jax.Array) -> Any:
        return jax.grad(lambda x, w: jnp.tanh(x @ w).sum(), (0, 1))(x, w)

    assert dims_of(grads, (B, 8), (8, 8)) == [0, None]


def test_micro_batches_of_a_scan_have_rows_of_their_own() -> None:
    def run(x: jax.Array, w: jax.Array) -> Any:
        return jax.lax.scan(
            lambda c, x: (c + (x @ w).sum(), x @ w), 0.0, x.reshape(4, 4, 8)
        )[1]

    jaxpr = trace(run, (B, 8), (8, 8))
    batch_dims = BatchDims()
    found = batch_dims.of(jaxpr, [0, None])
    scan = eqn_of(jaxpr, "scan")
    (body,) = bodies_of(scan)
    entered = batch_dims.enter(body, read_dims(scan, found))
    x = next(
        v for v, d in zip(inner(body.jaxpr).invars, entered, strict=True) if d == 0
    )
    assert x.aval.shape == (4, 8)
    assert found[inner(jaxpr).outvars[0]] == 1  # (micro, rows, 8)


def test_a_carry_that_starts_as_zeros_becomes_rows() -> None:
    def run(x: jax.Array) -> Any:
        turn = lambda i, c: (c[1] + x, c[0])  # noqa: E731
        return jax.lax.fori_loop(0, 3, turn, (jnp.zeros((B, 8)), jnp.ones((B, 8))))

    assert dims_of(run, (B, 8)) == [0, 0]


def test_dims_are_found_once_per_body() -> None:
    jaxpr = trace(lambda x: x * 2, (B, 8))
    batch_dims = BatchDims()
    assert batch_dims.of(jaxpr, [0]) is batch_dims.of(jaxpr, (0,))
