"""Handlers hand every element to the kernel, once, whatever the size and the pool."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jzero.compat.ffi import handler_text, register_handler
from jzero.compat.llvm import compile_text

ROOT = Path(__file__).parents[3]
RUN = 2**15

# Adds one to each element between `begin` and `end`.
KERNEL = """
define internal void @kernel(ptr %slots, i64 %begin, i64 %end) {
entry:
  %from = load ptr, ptr %slots
  %into_at = getelementptr ptr, ptr %slots, i64 1
  %into = load ptr, ptr %into_at
  br label %next
next:
  %i = phi i64 [ %begin, %entry ], [ %j, %do ]
  %is_left = icmp slt i64 %i, %end
  br i1 %is_left, label %do, label %finished
do:
  %x_at = getelementptr float, ptr %from, i64 %i
  %x = load float, ptr %x_at
  %y = fadd float %x, 1.0
  %y_at = getelementptr float, ptr %into, i64 %i
  store float %y, ptr %y_at
  %j = add i64 %i, 1
  br label %next
finished:
  ret void
}
"""


@cache
def name_of_adding() -> str:
    name = "jzero_test_adds_one"
    text = handler_text(name, "kernel", num_inputs=1, num_results=1, counted=0)
    register_handler(name, compile_text(text + KERNEL, name))
    return name


def add_one(x: jax.Array, **settings: Any) -> jax.Array:
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call: Callable[..., Any] = jax.ffi.ffi_call(name_of_adding(), result, **settings)
    return call(x)


SHAPES = [(), (0,), (1,), (3, 5), (RUN,), (RUN + 1,), (4, RUN), (7, 3, RUN // 2 + 11)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_element_once(shape: tuple[int, ...]) -> None:
    x = jnp.arange(np.prod(shape, dtype=int), dtype=jnp.float32).reshape(shape)
    np.testing.assert_array_equal(jax.jit(add_one)(x), np.asarray(x) + 1)


def test_in_place() -> None:
    def step(x: jax.Array) -> jax.Array:
        return add_one(x, input_output_aliases={0: 0})

    x = jnp.zeros(5 * RUN)
    compiled = jax.jit(step, donate_argnums=0).lower(x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < x.nbytes / 2
    before = x.unsafe_buffer_pointer()
    y = compiled(x)
    assert y.unsafe_buffer_pointer() == before
    np.testing.assert_array_equal(y, np.ones(5 * RUN))


def test_many_at_once_share_the_threads() -> None:
    """More handlers than threads, each with work for all: none waits for ever."""
    xs = [jnp.full(10 * RUN, i, jnp.float32) for i in range(24)]
    run = jax.jit(lambda *xs: [add_one(add_one(x)) for x in xs])
    for _ in range(5):
        totals = [float(y.min() + y.max()) for y in run(*xs)]
        assert totals == [2 * (i + 2) for i in range(24)]


ONE_THREAD = """
import jax.numpy as jnp
from tests.jzero.compat.test_ffi import RUN, add_one
print(float(add_one(jnp.zeros(9 * RUN)).sum()) / RUN)
"""


def test_a_pool_of_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_NPROC", "1")
    command = [sys.executable, "-c", ONE_THREAD]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert float(done.stdout) == 9
