"""What a program says about the dims of its inputs and outputs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jzero.ir.facts import constrained_outputs, scanned_inputs, stacked_outputs
from tests.jzero.ir.build import scanned, struct, trace

MESH = Mesh(np.array(jax.devices()), ("data",))


def test_scanned_inputs_through_casts_and_calls() -> None:
    def function(w, x, v):
        return jax.jit(scanned)(w * 2, x) + v.sum().astype(jnp.bfloat16)

    jaxpr = trace(function, struct(3, 8, 8), struct(4, 8), struct(3))
    assert scanned_inputs(jaxpr) == (True, False, False)


def test_stacked_outputs_of_an_initialiser() -> None:
    def create(x):
        _, ys = jax.lax.scan(lambda c, _: (c, c * 2), x, None, length=5)
        return ys.astype(jnp.bfloat16), x, jax.jit(lambda v: v + 1)(ys)

    assert stacked_outputs(trace(create, struct(4))) == (True, False, True)


def test_specs_of_the_users_own_constraints() -> None:
    def create(x):
        placed = NamedSharding(MESH, P(None, "data"))
        return jax.jit(lambda v: jax.lax.with_sharding_constraint(v, placed) * 2)(x), x

    specs = constrained_outputs(trace(create, struct(4, 8)))
    assert specs == (P(None, "data"), None)
