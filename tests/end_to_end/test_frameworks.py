"""Flax linen and nnx states, as their users write them."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import jzero
from tests.end_to_end.oracle import SHARD_ALL, CompileCounter

TX = optax.adamw(1e-3)


class ConvNet(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, is_training: bool) -> jax.Array:
        x = nn.Conv(16, (3, 3), use_bias=False)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not is_training)(x))
        x = nn.Dropout(0.3, deterministic=not is_training)(x)
        return nn.Dense(16)(x.reshape(x.shape[0], -1))


class BatchNormState(TrainState):
    batch_stats: Any = None


def _images(i: int) -> dict[str, np.ndarray]:
    images = np.random.default_rng(i).normal(size=(16, 8, 8, 3)).astype(np.float32)
    return {"x": images, "y": np.arange(16)}


def _create(key: jax.Array, batch: Any) -> BatchNormState:
    model = ConvNet()
    variables = model.init({"params": key, "dropout": key}, batch["x"], True)
    return BatchNormState.create(
        apply_fn=model.apply,
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        tx=TX,
    )


def _linen_step(state: Any, batch: Any, key: jax.Array) -> Any:
    def loss(params):
        logits, updates = state.apply_fn(
            {"params": params, "batch_stats": state.batch_stats},
            batch["x"],
            True,
            rngs={"dropout": jax.random.fold_in(key, state.step)},
            mutable=["batch_stats"],
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
        return losses.mean(), updates["batch_stats"]

    (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
    state = state.apply_gradients(grads=grads).replace(batch_stats=stats)
    return state, {"loss": value}


@pytest.mark.parametrize("stage", range(4))
def test_linen_train_state_with_batch_norm_and_dropout(stage: int) -> None:
    sharded = jzero.shard_train_step(_linen_step, stage=stage, config=SHARD_ALL)
    ours = sharded.init(_create, jax.random.key(0), _images(0))
    theirs = jax.jit(_create)(jax.random.key(0), _images(0))
    alone = jax.jit(_linen_step)
    counter = CompileCounter("_linen_step")
    for i in range(4):
        batch = sharded.shard_batch(_images(i))
        with counter:
            ours, got = sharded(ours, batch, jax.random.key(i))
        theirs, wanted = alone(theirs, _images(i), jax.random.key(i))
        np.testing.assert_allclose(got["loss"], wanted["loss"], rtol=1e-5)
    assert counter.count == 1
    kernel = ours.params["Dense_0"]["kernel"]
    assert kernel.addressable_shards[0].data.size * (8 if stage else 1) == kernel.size
    assert ours.batch_stats["BatchNorm_0"]["mean"].is_fully_replicated

    @sharded.eval_step
    def evaluate(state, batch):
        variables = {"params": state.params, "batch_stats": state.batch_stats}
        return state.apply_fn(variables, batch["x"], False)

    wanted = theirs.apply_fn(
        {"params": theirs.params, "batch_stats": theirs.batch_stats},
        _images(0)["x"],
        False,
    )
    np.testing.assert_allclose(evaluate(ours, _images(0)), wanted, atol=1e-3)


class NnxNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(24, 32, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.last = nnx.Linear(32, 16, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))


def _make_nnx() -> tuple[NnxNet, nnx.Optimizer]:
    model = NnxNet(nnx.Rngs(0))
    return model, nnx.Optimizer(model, TX, wrt=nnx.Param)


def _vectors(i: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(i).normal(size=(16, 24)).astype(np.float32)
    return x, np.arange(16, dtype=np.int32)


def _nnx_step(model: NnxNet, optimizer: nnx.Optimizer, batch: Any) -> jax.Array:
    def loss(m):
        logits = m(batch[0])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch[1])
        return losses.mean()

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


@pytest.mark.parametrize("stage", range(4))
def test_nnx_step_that_mutates_its_objects(stage: int) -> None:
    sharded = jzero.shard_train_step(
        nnx.jit(_nnx_step) if stage == 2 else _nnx_step, stage=stage, config=SHARD_ALL
    )
    ours, theirs = sharded.init(_make_nnx), _make_nnx()
    alone = nnx.jit(_nnx_step)
    counter = CompileCounter("_nnx_step")
    for i in range(4):
        with counter:
            got = sharded(*ours, _vectors(i))
        wanted = alone(*theirs, _vectors(i))
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert counter.count == 1
    kernel = jax.tree.leaves(nnx.state(ours[0].last, nnx.Param))[-1]
    assert kernel.addressable_shards[0].data.size * (8 if stage else 1) == kernel.size
    ours[0].eval()
    theirs[0].eval()
    logits = sharded.eval_step(lambda m, x: m(x))(ours[0], _vectors(0)[0])
    np.testing.assert_allclose(logits, theirs[0](_vectors(0)[0]), atol=1e-3)


def test_nnx_objects_made_elsewhere_are_placed_by_shard() -> None:
    sharded = jzero.shard_train_step(_nnx_step, config=SHARD_ALL)
    ours, theirs = _make_nnx(), _make_nnx()
    assert sharded.shard(ours) is ours
    got = sharded(*ours, _vectors(0))
    np.testing.assert_allclose(got, nnx.jit(_nnx_step)(*theirs, _vectors(0)), rtol=1e-5)


def test_nnx_split_state() -> None:
    model = NnxNet(nnx.Rngs(0))
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def step(params, opt_state, rest, batch):
        def loss(p):
            net = nnx.merge(graphdef, p, rest, copy=True)
            logits = net(batch[0])
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch[1])
            return losses.mean(), nnx.split(net, nnx.Param, ...)[2]

        (value, rest), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt_state = TX.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, rest, value

    sharded = jzero.shard_train_step(step, config=SHARD_ALL)
    ours = (params, TX.init(params), rest)
    theirs = jax.tree.map(jnp.copy, ours)
    for i in range(3):
        *ours, got = sharded(*ours, _vectors(i))
        *theirs, wanted = jax.jit(step)(*theirs, _vectors(i))
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
