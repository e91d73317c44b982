"""Which one form of a weight a body uses, if there is just one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jzero.compat.jaxpr import inner
from jzero.ir.bodies import bodies_of
from jzero.ir.uses import WHOLE, Uses
from tests.jzero.ir.build import struct, trace

LOW = jnp.bfloat16


@pytest.mark.parametrize(
    ("body", "form"),
    (
        (lambda w, x: x @ w, WHOLE),
        (lambda w, x: x.astype(LOW) @ w.astype(LOW), "bfloat16"),
        (lambda w, x: (x @ w).astype(LOW) + x.astype(LOW) @ w.astype(LOW), WHOLE),
        (lambda w, x: x @ (w * 2), None),
        (lambda w, x: (x, w), None),
        (lambda w, x: x, None),
        (lambda w, x: jax.jit(lambda v: x.astype(LOW) @ v.astype(LOW))(w), "bfloat16"),
    ),
)
def test_forms(body, form) -> None:
    jaxpr = trace(lambda w, x: jax.checkpoint(body)(w, x), struct(8, 8), struct(4, 8))
    (eqn,) = [
        e for e in inner(jaxpr).eqns if e.primitive.name in ("remat2", "checkpoint")
    ]
    operand = list(eqn.invars).index(inner(jaxpr).invars[0])
    uses = Uses("jzero.gather", True)
    assert uses.sole_form(bodies_of(eqn), operand) == form
