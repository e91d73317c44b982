"""A scan over a stack in host memory equals the scan over its slices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jzero.compat.jaxpr import inner, jaxpr_callable
from jzero.compat.memory import to_device, to_host
from jzero.ir.host_scan import scan_by_number


@pytest.mark.parametrize("reverse", [False, True])
def test_the_same_carry_and_stacks(reverse: bool) -> None:
    weights = jnp.arange(24.0).reshape(4, 2, 3)
    shifts = jnp.arange(4.0)

    def loop(c, weights, shifts):
        def turn(c, now):
            w, s = now
            return c * 0.5 + w.sum() + s, c + s

        return jax.lax.scan(turn, c, (weights, shifts), reverse=reverse)

    jaxpr = jax.make_jaxpr(loop)(1.0, weights, shifts)
    (eqn,) = [e for e in inner(jaxpr).eqns if e.primitive.name == "scan"]
    inside = jaxpr_callable(eqn.params["jaxpr"])
    host = [v.aval.shape == weights.shape for v in eqn.invars]

    def body(*xs):
        return inside(*(to_device(x) if x.shape == (2, 3) else x for x in xs))

    run = scan_by_number(eqn, body, host)
    values = {(): jnp.float32(1.0), weights.shape: weights, shifts.shape: shifts}

    def by_number():
        operands = [values[v.aval.shape] for v in eqn.invars]
        return run(
            *(to_host(x) if h else x for x, h in zip(operands, host, strict=True))
        )

    wanted = jax.tree.leaves(loop(jnp.float32(1.0), weights, shifts))
    for one, other in zip(jax.jit(by_number)(), wanted, strict=True):
        np.testing.assert_array_equal(one, other)
