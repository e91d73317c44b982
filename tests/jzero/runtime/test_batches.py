"""Batches become global arrays, split where the step wants them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jzero
from jzero.runtime.batches import shape_of


def step_fn(params, batch, key):
    def turn(carry, x):
        return carry + x.mean(), None

    total, _ = jax.lax.scan(turn, 0.0, batch["micro"])
    return jax.tree.map(lambda p: p - total, params), total


def make() -> jzero.TrainStep:
    return jzero.shard_train_step(
        step_fn, config=jzero.ZeroConfig(persistence_threshold=0)
    )


def test_rows_are_split_and_keys_and_scalars_are_not() -> None:
    batch = {"x": np.ones((16, 3)), "key": jax.random.key(0), "n": 3}
    placed = make().shard_batch(batch)
    assert placed["x"].sharding.spec == P("data")
    assert placed["key"].is_fully_replicated
    assert placed["n"].is_fully_replicated
    np.testing.assert_array_equal(placed["x"], batch["x"])


def test_a_scanned_dim_is_recognised_after_the_first_call() -> None:
    step = make()
    params = {"w": jnp.ones((16,))}
    micro = {"micro": np.arange(64.0, dtype=np.float32).reshape(4, 16)}
    params, total = step(params, micro, jax.random.key(0))
    placed = step.shard_batch(micro)
    assert placed["micro"].sharding.spec == P(None, "data")
    _, again = step(params, placed, jax.random.key(0))
    assert float(total) == float(again) == pytest.approx(micro["micro"].mean() * 4)


def test_a_batch_placed_otherwise_is_moved() -> None:
    step = make()
    params = {"w": jnp.ones((16,))}
    whole = jax.device_put(jnp.ones((4, 16)), jax.devices()[3])
    _, total = step(params, {"micro": whole}, jax.random.key(0))
    assert float(total) == 4.0


def test_an_indivisible_batch_names_sizes() -> None:
    with pytest.raises(jzero.BatchError, match=r"batch\['x'\](.|\n)*10(.|\n)*8"):
        make().shard_batch({"x": np.ones((10, 3))})


def test_what_tells_shapes_apart() -> None:
    assert shape_of(np.ones((2, 3))) == ((2, 3), np.dtype(np.float64))
    assert shape_of(1.0) == (None, float)
