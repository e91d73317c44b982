"""Copies between memories and computing on the host, in this version of JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jzero.compat.memory import (
    abstract_on_host,
    compute_on_host,
    is_on_host,
    to_device,
    to_host,
)


def test_there_and_back() -> None:
    seen = []

    def move(x):
        down = to_host(x)
        seen.append((is_on_host(jax.typeof(x)), is_on_host(jax.typeof(down))))
        return down, to_device(down) + 1

    down, up = jax.jit(move)(jnp.ones(4))
    assert seen == [(False, True)]
    assert down.sharding.memory_kind == "pinned_host"
    assert up.sharding.memory_kind == "device"
    np.testing.assert_array_equal(up, 2 * np.ones(4))


def test_an_abstract_array_keeps_what_it_is() -> None:
    aval = jax.typeof(jnp.ones((2, 3), jnp.bfloat16))
    host = abstract_on_host(aval)
    assert is_on_host(host)
    assert not is_on_host(aval)
    assert (host.shape, host.dtype) == (aval.shape, aval.dtype)


def test_computing_on_the_host() -> None:
    def step(x, y):
        outs = compute_on_host(
            lambda a, b: [a + b, a * b], to_host(x), to_host(y), num_outs=2
        )
        assert all(is_on_host(jax.typeof(out)) for out in outs)
        return list(outs)

    x, y = jnp.arange(4.0), jnp.full((4,), 3.0)
    added, multiplied = jax.jit(step)(x, y)
    np.testing.assert_array_equal(added, x + y)
    np.testing.assert_array_equal(multiplied, x * y)
