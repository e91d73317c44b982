"""One loop over arrays of any size, in place where results replace inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jzero.ir.host_kernel import HostKernel
from tests.jzero.ir.loops import kernel_of


def momentum(p: Any, m: Any, g: Any, rate: Any) -> list[Any]:
    m = m * 0.5 + g
    return [p - rate * m, m]


def in_place(shape: tuple[int, ...]) -> HostKernel:
    x = jnp.zeros(shape)
    kernel = kernel_of(momentum, x, x, x, jnp.float32(0))
    return replace(
        kernel, reuses=dict(zip(kernel.outs, kernel.inputs[:2], strict=True))
    )


def arrays(shape: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    # Quarters, whose sums and products are exact: no order of rounding shows.
    found = [rng.integers(-8, 8, size=shape) / 4 for _ in range(3)]
    return [np.asarray(x, np.float32) for x in (*found, 0.25)]


SHAPES = [(1,), (31,), (32,), (33,), (5, 7), (2, 3, 11), (32768 + 33,), (0, 4)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_size(shape: tuple[int, ...]) -> None:
    given = arrays(shape)
    got = jax.jit(in_place(shape).run)(*map(jnp.asarray, given))
    for one, other in zip(got, momentum(*given), strict=True):
        np.testing.assert_array_equal(one, other)


def test_nothing_is_allocated() -> None:
    shape = (1000, 100)
    given = [jnp.asarray(x) for x in arrays(shape)]
    step = jax.jit(in_place(shape).run, donate_argnums=(0, 1))
    memory = step.lower(*given).compile().memory_analysis()
    assert memory.alias_size_in_bytes == 2 * 4 * 10**5
    assert memory.temp_size_in_bytes < 4 * 10**4
    places = [x.unsafe_buffer_pointer() for x in given[:2]]
    got = step(*given)
    assert [x.unsafe_buffer_pointer() for x in got] == places


def test_an_old_value_that_is_read_elsewhere_is_kept() -> None:
    shape = (100, 100)
    given = arrays(shape)

    def step(*xs: Any) -> Any:
        return *in_place(shape).run(*xs), (xs[1] * 3).sum()

    *_, metric = jax.jit(step, donate_argnums=(0, 1))(*map(jnp.asarray, given))
    assert float(metric) == float((given[1] * 3).sum())


def test_the_loop_is_the_same_for_every_shape() -> None:
    assert in_place((5, 7)).text() == in_place((3,)).text()


def test_a_scalar_is_read_outside_of_the_loop() -> None:
    entry, loop = in_place((3,)).text().split("next.many:", 1)
    assert "%slot3.value = load float, ptr %slot3" in entry
    assert "load float" not in loop
