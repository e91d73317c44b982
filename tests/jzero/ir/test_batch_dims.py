"""The batch dim is followed through what models do to activations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jzero.compat.jaxpr import inner
from jzero.ir.batch_dims import BatchDims
from tests.jzero.ir.build import scanned, struct, trace


def out_dim(function, *shapes, dims):
    jaxpr = trace(function, *shapes)
    found = BatchDims().of(jaxpr, dims)
    return found.get(inner(jaxpr).outvars[0])


X = struct(16, 6, 8)


@pytest.mark.parametrize(
    ("function", "dim"),
    (
        (lambda x: jnp.tanh(x) * 2, 0),
        (lambda x: x.transpose(1, 0, 2), 1),
        (lambda x: x.reshape(96, 8), 0),
        (lambda x: x.reshape(96, 8).reshape(16, 6, 8), 0),
        (lambda x: x.reshape(4, 4, 6, 8), 0),
        (lambda x: x.sum(1), 0),
        (lambda x: x.sum(0), None),
        (lambda x: x[:, None], 0),
        (lambda x: jnp.broadcast_to(x[None], (3, 16, 6, 8)), 1),
        (lambda x: jnp.concatenate([x, x], 2), 0),
        (lambda x: jax.checkpoint(lambda v: v + 1)(x), 0),
        (lambda x: jax.lax.scan(lambda c, _: (c * 2, None), x, None, length=3)[0], 0),
        (lambda x: jax.lax.scan(lambda c, _: (c, c), x, None, length=3)[1], 1),
    ),
)
def test_one_activation(function, dim) -> None:
    assert out_dim(function, X, dims=(0,)) == dim


def test_products_convolutions_and_lookups() -> None:
    assert out_dim(lambda x, w: x @ w, X, struct(8, 4), dims=(0, None)) == 0
    assert out_dim(lambda w, x: w @ x, struct(4, 8), struct(8, 16), dims=(None, 1)) == 1
    einsum = lambda q, k: jnp.einsum("bqd,bkd->bqk", q, k)  # noqa: E731
    assert out_dim(einsum, X, X, dims=(0, 0)) == 0
    conv = lambda x, k: jax.lax.conv_general_dilated(  # noqa: E731
        x, k, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )
    assert out_dim(conv, X, struct(3, 8, 4), dims=(0, None)) == 0
    ids = struct(16, 6, dtype=jnp.int32)
    take = lambda w, i: jnp.take(w, i, axis=0)  # noqa: E731
    assert out_dim(take, struct(10, 8), ids, dims=(None, 0)) == 0


def test_a_carry_that_starts_as_zeros_becomes_rows() -> None:
    def function(w, x):
        return jax.lax.scan(lambda c, v: (c + x, None), jnp.zeros((16, 8)), w)[0]

    assert out_dim(function, struct(3, 2), struct(16, 8), dims=(None, 0)) == 0


def test_weights_have_no_batch_dim() -> None:
    jaxpr = trace(scanned, struct(3, 8, 8), struct(16, 8))
    found = BatchDims().of(jaxpr, (None, 0))
    assert inner(jaxpr).invars[0] not in found
    assert found[inner(jaxpr).outvars[0]] == 0
