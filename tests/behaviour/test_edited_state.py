"""A returned state that the user edits in place is vetted like any other."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jzero
from tests.end_to_end.oracle import SHARD_ALL, CompileCounter

ROOT = Path(__file__).resolve().parents[2]
ROWS = np.ones((8, 2), np.float32)


def edited_step(state: Any, x: jax.Array) -> Any:
    return jax.tree.map(lambda p: p - x.mean().astype(p.dtype), state), {"sum": x.sum()}


def start(stage: int = 3) -> tuple[jzero.TrainStep, Any]:
    """A step and the state of its second call, so that the third is routine."""
    step = jzero.shard_train_step(edited_step, stage=stage, config=SHARD_ALL)
    state = step.shard({"a": jnp.zeros(16), "b": jnp.zeros(16), "c": jnp.zeros(())})
    for _ in range(2):
        state, _ = step(state, ROWS)
    return step, state


@pytest.mark.parametrize("where", ("anywhere", "one_device", "host"))
@pytest.mark.parametrize("stage", range(4))
def test_the_users_own_array_is_copied(stage: int, where: str) -> None:
    step, state = start(stage)
    mine: Any = jnp.full(16, 5.0, jnp.float32)
    if where == "one_device":
        mine = jax.device_put(mine, jax.devices()[0])
    if where == "host":
        mine = np.full(16, 5.0, np.float32)
    state["a"] = mine
    state["c"] = jnp.asarray(7.0, jnp.float32)
    number = state["c"]
    with CompileCounter("edited_step") as counter:
        state, _ = step(state, ROWS)
    assert counter.count == 0
    np.testing.assert_array_equal(mine, np.full(16, 5.0))
    assert float(number) == 7.0
    np.testing.assert_array_equal(state["a"], np.full(16, 4.0))
    np.testing.assert_array_equal(state["b"], np.full(16, -3.0))
    assert float(state["c"]) == 6.0


def in_a_process_of_its_own(lines: str) -> subprocess.CompletedProcess[str]:
    """Old JAX crashes on a buffer donated twice, and on a deleted one."""
    code = (
        "import tests.conftest\n"
        "from tests.behaviour.test_edited_state import *\n" + textwrap.dedent(lines)
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        cwd=ROOT,
    )


@pytest.mark.parametrize("stage", (0, 3))
def test_one_buffer_at_two_paths_is_found_before_the_call(stage: int) -> None:
    done = in_a_process_of_its_own(f"""
        step, state = start({stage})
        state["b"] = state["a"]
        try:
            step(state, ROWS)
        except jzero.AliasError as error:
            assert "state['a']" in str(error) and "state['b']" in str(error)
            assert not state["a"].is_deleted()
            state["b"] = jnp.copy(state["a"])
            print(float(step(state, ROWS)[0]["b"][0]))
    """)
    assert (done.returncode, done.stdout) == (0, "-3.0\n"), done.stderr
    assert "donate the same buffer twice" not in done.stderr


def test_a_donated_leaf_put_back_is_named() -> None:
    done = in_a_process_of_its_own("""
        step, state = start()
        old = state["a"]
        state, _ = step(state, ROWS)
        state["a"] = old
        try:
            step(state, ROWS)
        except jzero.DonationError as error:
            assert "state['a']" in str(error)
            assert "state['b']" not in str(error)
            state["a"] = jnp.zeros(16)
            print(float(step(state, ROWS)[0]["b"][0]))
    """)
    assert (done.returncode, done.stdout) == (0, "-4.0\n"), done.stderr


@pytest.mark.parametrize("change", ("shape", "dtype"))
def test_a_leaf_of_another_shape_or_dtype_builds_its_own_program(change: str) -> None:
    step, state = start()
    state["a"] = (
        jnp.zeros(24) if change == "shape" else jnp.zeros(16, dtype=jnp.bfloat16)
    )
    wanted = state["a"].shape, state["a"].dtype
    state, _ = step(state, ROWS)
    assert (state["a"].shape, state["a"].dtype) == wanted
    np.testing.assert_array_equal(state["a"], np.full(wanted[0], -1.0))
