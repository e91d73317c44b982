"""Randomness does not depend on how many devices draw it."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jzero
from tests.behaviour.training import train, train_alone
from tests.end_to_end.oracle import SHARD_ALL, mesh_of


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return nn.tanh(nn.Dense(16)(x)), None


class Stack(nn.Module):
    """Layers written out and layers stacked, with initialisers of each kind."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Dense(16, kernel_init=nn.initializers.orthogonal())(x)
        x = nn.Dense(16, kernel_init=nn.initializers.truncated_normal(0.1))(x)
        layers = nn.scan(
            Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=8
        )
        return layers()(x, None)[0]


def create(key: jax.Array) -> Any:
    stacked = jax.vmap(lambda k: jax.random.normal(k, (16, 24)))(
        jax.random.split(key, 8)
    )
    params = Stack().init(key, jnp.zeros((1, 16)))["params"]
    return {"params": {**params, "stacked": stacked}}


def keep(state: Any, x: jax.Array) -> Any:
    return jax.tree.map(lambda p: p + 0 * x.sum(), state), {}


@pytest.mark.parametrize("num_devices", (1, 2, 4, 8))
def test_init_draws_the_same_weights(num_devices: int) -> None:
    step = jzero.shard_train_step(keep, mesh=mesh_of(num_devices), config=SHARD_ALL)
    state = step.init(create, jax.random.key(7))
    rows = jax.tree_util.tree_flatten_with_path(create(jax.random.key(7)))[0]
    for (path, want), got in zip(rows, jax.tree.leaves(state), strict=True):
        name = jax.tree_util.keystr(path)
        if "Dense_0" in name and "kernel" in name and "Scan" not in name:
            # The QR of an orthogonal initialiser adds up in another order.
            np.testing.assert_allclose(got, want, atol=1e-6, err_msg=name)
        else:
            # The same bits drawn; XLA rounds an inverse error function by what it is
            # compiled together with.
            np.testing.assert_allclose(got, want, rtol=5e-7, atol=1e-7, err_msg=name)
        if num_devices == 8 and want.size > 16:
            assert not got.is_fully_replicated, name


def dropout(state: Any, x: jax.Array, key: jax.Array) -> Any:
    mask = jax.random.bernoulli(key, 0.5, x.shape)
    y = jnp.where(mask, x @ state["w"], 0.0)
    return {"w": state["w"] - 0.1 * (x.T @ y)}, {"mask": mask}


@pytest.mark.parametrize("make_key", (jax.random.key, jax.random.PRNGKey))
@pytest.mark.parametrize("stage", range(4))
def test_dropout_differs_by_row_and_equals_one_device(
    stage: int, make_key: Any
) -> None:
    x = np.ones((8, 64), np.float32)  # one row per device
    start = {"w": np.eye(64, dtype=np.float32)}
    batches = [(x, make_key(0)), (x, make_key(1))]
    _, seen = train(dropout, start, batches, stage=stage)
    _, wanted = train_alone(dropout, start, batches)
    for got, want in zip(seen, wanted, strict=True):
        masks = np.asarray(got["mask"])
        assert len({row.tobytes() for row in masks}) == 8, "one mask on all devices"
        np.testing.assert_array_equal(masks, want["mask"])
    assert not np.array_equal(seen[0]["mask"], seen[1]["mask"])
