"""The smallest share in host memory that fits, by compiling."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jzero
from jzero.errors import ConfigError

NUM_LAYERS = 8
LAYER_BYTES = 4 * 64 * 64
SHAPES = (
    {
        f"layer_{i}": jax.ShapeDtypeStruct((64, 64), jnp.float32)
        for i in range(NUM_LAYERS)
    },
    jax.ShapeDtypeStruct((8, 64), jnp.float32),
)


def train_step(params: Any, x: jax.Array) -> Any:
    grads = jax.tree.map(lambda p: jnp.sin(p), params)
    return jax.tree.map(lambda p, g: p - g, params, grads), x.sum()


def step_for(device_bytes: int, **settings: Any) -> jzero.TrainStep:
    offload = jzero.Offload(
        params="host", ratio="auto", device_bytes=device_bytes, window=64, **settings
    )
    config = jzero.ZeroConfig(persistence_threshold=0, offload=offload)
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    return jzero.shard_train_step(train_step, config=config, mesh=mesh)


def test_a_budget_between_nothing_and_all() -> None:
    budget_bytes = NUM_LAYERS * LAYER_BYTES * 3 // 4
    fitted = jzero.fit_offload(step_for(budget_bytes), *SHAPES)
    offload = fitted.config.offload
    assert offload is not None
    assert 0 < float(offload.ratio) < 1
    report = fitted.compile(*SHAPES).report()
    assert report.memory.device_peak_bytes <= budget_bytes
    assert 0 < report.plan.host_bytes < NUM_LAYERS * LAYER_BYTES


def test_what_fits_anyway_is_not_offloaded() -> None:
    assert jzero.fit_offload(step_for(2**40), *SHAPES).config.offload is None


def test_what_never_fits_says_by_how_much() -> None:
    with pytest.raises(ConfigError, match="too much"):
        jzero.fit_offload(step_for(100), *SHAPES)


def test_a_step_without_such_a_ratio() -> None:
    step = jzero.shard_train_step(train_step)
    with pytest.raises(ConfigError, match='ratio="auto"'):
        jzero.fit_offload(step, *SHAPES)


def test_an_unfitted_step_says_what_to_call() -> None:
    with pytest.raises(ConfigError, match="fit_offload"):
        step_for(2**20).plan(*SHAPES)
