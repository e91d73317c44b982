"""Weights in two places: one gradient, and never one buffer donated twice."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jzero
from tests.behaviour.training import assert_like_one_device, num_parts
from tests.end_to_end.oracle import SHARD_ALL


@pytest.mark.parametrize("stage", range(4))
def test_gradient_of_a_leaf_used_twice_is_the_sum(stage: int) -> None:
    def step(state: Any, x: jax.Array) -> Any:
        def loss(w: jax.Array) -> jax.Array:
            return (x.mean() * w).sum() + (2 * x.mean() * w.T).sum()

        return {"w": state["w"] - jax.grad(loss)(state["w"])}, {}

    start = {"w": np.zeros((16, 8), np.float32)}
    rows = np.arange(16, dtype=np.float32).reshape(8, 2) - 6.5  # of mean 1
    state, _ = assert_like_one_device(step, start, [(rows,)], stage=stage)
    np.testing.assert_allclose(state["w"], np.full((16, 8), -3.0), rtol=1e-6)


def both(state: Any, x: jax.Array) -> Any:
    return jax.tree.map(lambda p: p - x.mean(), state), {"sum": x.sum()}


@pytest.mark.parametrize("stage", range(4))
def test_one_array_at_two_paths(stage: int) -> None:
    """The user's own array is copied to both; a placed one is refused."""
    rows = np.ones((8, 2), np.float32)
    step = jzero.shard_train_step(both, stage=stage, config=SHARD_ALL)
    mine = jnp.zeros(16)
    state, _ = step({"a": mine, "b": mine}, rows)
    assert not mine.is_deleted()
    tied = {"a": state["a"], "b": state["a"]}
    with pytest.raises(jzero.AliasError) as error:
        step(tied, rows)
    for part in ("state['a']", "state['b']", "Remedy", "step.shard"):
        assert part in str(error.value)
    assert not state["a"].is_deleted()
    state, _ = step(step.shard(tied), rows)
    for name in ("a", "b"):
        np.testing.assert_array_equal(state[name], np.full(16, -2.0))


def test_create_fn_that_returns_one_array_twice() -> None:
    def create() -> Any:
        w = jnp.zeros(16)
        return {"a": w, "b": w}

    step = jzero.shard_train_step(both, config=SHARD_ALL)
    state = step.init(create)
    for _ in range(2):
        state, _ = step(state, np.ones((8, 2), np.float32))
    np.testing.assert_array_equal(state["b"], np.full(16, -2.0))


class TiedNet(nnx.Module):
    """Embeds and predicts by one table, held by two submodules."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(32, 16, rngs=rngs)
        self.mix = nnx.Linear(16, 16, use_bias=False, rngs=rngs)
        self.head = nnx.Embed(32, 16, rngs=rngs)
        self.head.embedding = self.embed.embedding

    def __call__(self, ids: jax.Array) -> jax.Array:
        return self.head.attend(jnp.tanh(self.mix(self.embed(ids))))


def _make_objects() -> tuple[TiedNet, nnx.Optimizer]:
    model = TiedNet(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.sgd(0.5, momentum=0.9), wrt=nnx.Param)


def _nnx_step(model: TiedNet, optimizer: nnx.Optimizer, ids: jax.Array) -> jax.Array:
    def loss(m: TiedNet) -> jax.Array:
        logits = m(ids)
        return optax.softmax_cross_entropy_with_integer_labels(logits, ids).mean()

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


@pytest.mark.parametrize("stage", (1, 3))
def test_nnx_variable_that_two_modules_share(stage: int) -> None:
    step = jzero.shard_train_step(_nnx_step, stage=stage, config=SHARD_ALL)
    ours, theirs = step.init(_make_objects), _make_objects()
    alone = nnx.jit(_nnx_step)
    for i in range(3):
        ids = (np.arange(16, dtype=np.int32) * 7 + i) % 32
        got, wanted = step(*ours, ids), alone(*theirs, ids)
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert ours[0].head.embedding is ours[0].embed.embedding
    table = ours[0].embed.embedding[...]
    assert num_parts(table) == 8
    np.testing.assert_allclose(
        table, theirs[0].embed.embedding[...], rtol=1e-4, atol=1e-6
    )
