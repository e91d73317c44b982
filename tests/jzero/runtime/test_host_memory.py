"""Host memory is asked before anything is allocated."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jzero
from jzero import HostMemoryError, Offload, ZeroConfig
from jzero.runtime.host_memory import available_bytes, check_host_memory

CONFIG = ZeroConfig(persistence_threshold=0, offload=Offload(params="host"))


def step_of(rows: int = 64) -> tuple[jzero.TrainStep, Any]:
    step = jzero.shard_train_step(lambda w, x: (w - x.mean(), x.sum()), config=CONFIG)
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((rows, 64), (8, 4))]
    return step, shapes


def mesh() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()), ("data",))


def test_this_machine_tells() -> None:
    free_bytes = available_bytes()
    assert free_bytes is None or free_bytes > 2**20


def test_enough_is_enough() -> None:
    step, shapes = step_of()
    plan = step.plan(*shapes)
    check_host_memory(plan, mesh(), free_bytes=64 * 64 * 4)
    check_host_memory(plan, mesh(), free_bytes=None)


def test_too_little_names_leaves_numbers_and_a_ratio() -> None:
    step, shapes = step_of()
    with pytest.raises(HostMemoryError) as caught:
        check_host_memory(step.plan(*shapes), mesh(), free_bytes=64 * 64 * 2)
    text = str(caught.value)
    for part in ("16.00 KiB", "8.00 KiB", "8 devices", "ratio=0.5", "w"):
        assert part in text


def test_init_refuses_what_no_machine_has() -> None:
    step, _ = step_of()
    if available_bytes() is None:
        pytest.skip("this system does not tell how much memory it has")
    with pytest.raises(HostMemoryError, match="Nothing was allocated"):
        step.init(lambda: jnp.zeros((2**24, 2**22)))
