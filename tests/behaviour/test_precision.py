"""jzero's own masters, loss scale and roundings keep the same promises, sharded."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jzero
from tests.behaviour.training import assert_same_on_every_device, num_parts, train

ONES = np.ones(16, np.float32)
FUSED = jzero.optim.sgd(1e-3, momentum=0.0)


def half_loss(params: Any, rows: jax.Array) -> jax.Array:
    return (params["w"] * rows.astype(params["w"].dtype).mean()).sum()


def step(state: jzero.TrainState, rows: jax.Array) -> Any:
    def loss(params: Any) -> jax.Array:
        return state.scale_loss(half_loss(params, rows))

    grads = jax.grad(loss)(state.params)
    new = state.apply_gradients(grads=grads)
    is_same = new.step == state.step
    return new, {"is_skipped": is_same}


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("inner", (FUSED, optax.sgd(1e-3)), ids=("fused", "optax"))
def test_masters_take_updates_below_bf16_resolution(inner: Any, stage: int) -> None:
    tx = jzero.optim.with_master_weights(inner)
    params = {"w": jnp.ones(8, jnp.bfloat16)}
    start = jzero.TrainState.create(apply_fn=None, params=params, tx=tx)
    state, _ = train(step, start, [(ONES,)] * 100, stage=stage)
    masters = state.opt_state.masters["w"]
    assert masters.dtype == jnp.float32
    assert num_parts(masters) == (8 if stage else 1)
    np.testing.assert_allclose(masters, np.full(8, 0.9), rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(state.params["w"], np.float32), 0.8984375)


def float16_step(state: jzero.TrainState, rows: jax.Array) -> Any:
    def loss(params: Any) -> jax.Array:
        half = {"w": params["w"].astype(jnp.float16)}
        return state.scale_loss(half_loss(half, rows))

    grads = jax.grad(loss)(state.params)
    new = state.apply_gradients(grads=grads)
    return new, {"scale": new.loss_scale.scale, "step": new.step}


SCALED: dict[str, Any] = {
    "fused": jzero.optim.sgd(lambda count: 0.1, momentum=0.9, clip_norm=100.0),
    "optax": optax.chain(
        optax.clip_by_global_norm(100.0),
        optax.trace(0.9),
        optax.scale_by_schedule(lambda count: -0.1),
    ),
}


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("stage", range(4))
def test_two_overflows_then_the_step(stage: int, name: str) -> None:
    def start() -> jzero.TrainState:
        return jzero.TrainState.create(
            apply_fn=None,
            params={"w": jnp.ones(8)},
            tx=SCALED[name],
            loss_scale=jzero.precision.DynamicLossScale(2.0**15),
        )

    rows = np.full(16, 4.0, np.float32)
    state, seen = train(float16_step, start(), [(rows,)] * 3, stage=stage)
    assert [float(m["scale"]) for m in seen] == [2.0**14, 2.0**13, 2.0**13]
    assert [int(m["step"]) for m in seen] == [0, 0, 1]
    assert_same_on_every_device(seen)
    np.testing.assert_allclose(state.params["w"], np.full(8, 0.6), rtol=1e-6)
    # In the rows of one device alone; no shard may take the step.
    rows[5] = np.inf
    once, seen = train(float16_step, start(), [(rows,)], stage=stage)
    assert_same_on_every_device(seen)
    for got, want in zip(
        jax.tree.leaves((once.params, once.opt_state)),
        jax.tree.leaves((start().params, start().opt_state)),
        strict=True,
    ):
        np.testing.assert_array_equal(got, want)


def test_the_smallest_scale_raises() -> None:
    start = jzero.TrainState.create(
        apply_fn=None,
        params={"w": jnp.ones(8)},
        tx=SCALED["fused"],
        loss_scale=jzero.precision.DynamicLossScale(2.0, min_scale=1.0),
    )
    rows = np.full(16, np.inf, np.float32)
    state, _ = train(float16_step, start, [(rows,)] * 2, stage=3)
    assert state.loss_scale is not None
    with pytest.raises(jzero.LossScaleError, match="smallest loss scale"):
        state.loss_scale.check()


def test_16_bits_alone_move_by_chance_and_alike_on_any_number_of_devices() -> None:
    tx = jzero.optim.sgd(1e-3, momentum=0.0, params="bf16", rounding="stochastic")
    params = {"w": jnp.ones(4096, jnp.bfloat16)}
    found = []
    for num_devices in (1, 2, 8):
        start = jzero.TrainState.create(apply_fn=None, params=params, tx=tx)
        state, _ = train(step, start, [(ONES,)] * 100, num_devices=num_devices)
        found.append(np.asarray(state.params["w"], np.float32))
    assert found[0].mean() == pytest.approx(0.9, abs=0.003)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
