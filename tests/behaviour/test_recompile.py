"""One program for a whole run, and nothing left when the step is dropped."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jzero
from tests.end_to_end.oracle import SHARD_ALL, CompileCounter

TX = optax.inject_hyperparams(optax.adam)(learning_rate=1e-2)


def train_step(params: Any, opt: Any, x: jax.Array) -> Any:
    value, grads = jax.value_and_grad(lambda p: ((x @ p["w"]) ** 2).mean())(params)
    updates, opt = TX.update(grads, opt, params)
    return optax.apply_updates(params, updates), opt, value


def create() -> Any:
    params = {"w": jnp.ones((16, 8)) * 0.1}
    return params, TX.init(params)


def rows(i: int) -> np.ndarray:
    return np.random.default_rng(i).normal(size=(16, 16)).astype(np.float32)


FORMS = (lambda x: x, jnp.asarray, "shard_batch", "one_device")


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("start", ("init", "shard", "as_is"))
def test_ten_steps_on_batches_of_every_form(start: str, stage: int) -> None:
    step = jzero.shard_train_step(train_step, stage=stage, config=SHARD_ALL)
    forms: list[Any] = [
        lambda x: x,
        jnp.asarray,
        step.shard_batch,
        lambda x: jax.device_put(x, jax.devices()[3]),
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype),
    ]
    counter = CompileCounter("train_step")
    with counter:
        state = step.init(create) if start == "init" else create()
        if start == "shard":
            state = step.shard(state)
        step.plan(*state, forms[-1](rows(0)))
        for i in range(10):
            *state, _ = step(*state, forms[i % 4](rows(i)))
    assert counter.count == 1


@pytest.mark.parametrize("value", (0.05, np.float32(0.05), "array"))
def test_learning_rate_set_by_hand_between_steps(value: Any) -> None:
    step = jzero.shard_train_step(train_step, config=SHARD_ALL)
    alone = jax.jit(train_step)
    ours, theirs = step.init(create), create()
    rate = jnp.asarray(0.05) if isinstance(value, str) else value
    with CompileCounter("train_step") as counter:
        *ours, _ = step(*ours, rows(0))
        ours[1].hyperparams["learning_rate"] = rate
        for i in (1, 2):
            *ours, _ = step(*ours, rows(i))
    assert counter.count == 1
    *theirs, _ = alone(*theirs, rows(0))
    theirs[1].hyperparams["learning_rate"] = jnp.asarray(0.05)
    for i in (1, 2):
        *theirs, _ = alone(*theirs, rows(i))
    np.testing.assert_allclose(ours[0]["w"], theirs[0]["w"], rtol=1e-5)
    assert float(ours[1].hyperparams["learning_rate"]) == pytest.approx(0.05)


def test_a_state_that_left_and_came_back() -> None:
    """As after a restore: equal arrays that this step never returned."""
    step = jzero.shard_train_step(train_step, config=SHARD_ALL)
    with CompileCounter("train_step") as counter:
        *state, _ = step(*step.init(create), rows(0))
        host = step.gather(tuple(state))
        *state, first = step(*step.shard(host), rows(1))
        *state, second = step(*host, rows(1))
        copied = jax.tree.map(jnp.copy, tuple(state))
        step(*copied, rows(2))
    assert counter.count == 1
    assert float(first) == float(second)


def _live() -> tuple[int, int]:
    gc.collect()
    arrays = jax.live_arrays()
    return len(arrays), sum(x.nbytes for x in arrays)


def test_memory_returns_after_building_and_dropping_the_step() -> None:
    def build_and_drop() -> None:
        step = jzero.shard_train_step(train_step, config=SHARD_ALL)
        state = step.init(create)
        for i in range(2):
            *state, loss = step(*state, rows(i))
        assert np.isfinite(float(loss))

    build_and_drop()  # what JAX itself caches
    before = _live()
    for _ in range(20):
        build_and_drop()
    assert _live() == before
