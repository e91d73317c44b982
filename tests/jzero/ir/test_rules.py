"""What equations do to the placement of their operands."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jzero.compat.jaxpr import inner
from jzero.ir.rules import is_elementwise, is_reduction, move_dims, moves_dims
from tests.jzero.ir.build import struct, trace

DIMS = (None, "data")


@pytest.mark.parametrize(
    ("function", "wanted"),
    (
        (lambda x: x.T, ("data", None)),
        (lambda x: x[None], (None, None, "data")),
        (lambda x: jax.lax.slice(x, (1, 0), (3, 8)), DIMS),
        (lambda x: jax.lax.slice(x, (0, 0), (4, 4)), None),
        (lambda x: x.reshape(32), None),
        (lambda x: x.sum(0), ("data",)),
        (lambda x: x.sum(1), (None,)),
        (lambda x: jax.lax.broadcast_in_dim(x, (3, 4, 8), (1, 2)), None),
    ),
)
def test_rearrangements(function, wanted) -> None:
    (eqn,) = inner(trace(function, struct(4, 8))).eqns[-1:]
    assert moves_dims(eqn)
    assert move_dims(eqn, DIMS) == wanted


def test_elementwise_needs_equal_shapes_or_scalars() -> None:
    eqns = inner(trace(lambda x, s: jnp.tanh(x * s), struct(4), struct())).eqns
    assert all(is_elementwise(e) for e in eqns)
    (eqn,) = inner(trace(lambda x: x @ x, struct(4, 4))).eqns
    assert not is_elementwise(eqn) and not moves_dims(eqn)
    (eqn,) = inner(trace(lambda x: jax.lax.reduce_max(x, (0,)), struct(4, 4))).eqns
    assert is_reduction(eqn)
