"""Arguments of lowered programs rest in host memory where that is said."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jzero.compat.lowered import rest_on_host


def kinds(lowered: jax.stages.Lowered) -> list[bool]:
    head = next(line for line in lowered.as_text().splitlines() if "@main" in line)
    arguments = head.split("%arg")[1:]
    return ["pinned_host" in argument for argument in arguments]


def test_the_named_arguments_and_no_others() -> None:
    def add(x, y, z):
        return x + y + z

    lowered = jax.jit(add, donate_argnums=1).lower(*[jnp.ones(4)] * 3)
    assert kinds(lowered) == [False, False, False]
    rest_on_host(lowered, [0, 2])
    assert kinds(lowered) == [True, False, True]
    assert "tf.aliasing_output" in lowered.as_text()
