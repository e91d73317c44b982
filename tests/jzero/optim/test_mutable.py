"""A fused update of `flax.nnx` objects, alone and sharded."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jzero
from jzero.errors import ConfigError
from tests.end_to_end.oracle import SHARD_ALL, mesh_of

X = np.random.default_rng(0).normal(size=(16, 64)).astype(np.float32)


def create(tx: Any) -> tuple[nnx.Linear, nnx.Optimizer[Any]]:
    model = nnx.Linear(64, 256, rngs=nnx.Rngs(0))
    return model, nnx.Optimizer(model, tx, wrt=nnx.Param)


def loss_fn(model: nnx.Linear, x: Any) -> jax.Array:
    return (model(x) ** 2).mean()


def fused_step(model: Any, optimizer: Any, x: Any) -> jax.Array:
    loss, grads = nnx.value_and_grad(loss_fn)(model, x)
    jzero.optim.apply_to_nnx(optimizer, model, grads)
    return loss


def test_the_numbers_of_its_own_update() -> None:
    @nnx.jit
    def usual_step(model: Any, optimizer: Any, x: Any) -> None:
        optimizer.update(model, nnx.grad(loss_fn)(model, x))

    one, two = (create(jzero.optim.adamw(1e-2)) for _ in range(2))
    step = nnx.jit(fused_step)
    for _ in range(3):
        step(*one, X)
        usual_step(*two, X)
    np.testing.assert_allclose(
        one[0].kernel[...], two[0].kernel[...], rtol=1e-6, atol=1e-7
    )
    assert int(one[1].step[...]) == 3


def test_a_skip_leaves_every_bit() -> None:
    @nnx.jit
    def skip(model: Any, optimizer: Any, x: Any) -> None:
        grads = nnx.grad(loss_fn)(model, x)
        jzero.optim.apply_to_nnx(optimizer, model, grads, skip=jnp.asarray(True))

    model, optimizer = create(jzero.optim.adamw(1e-2))
    before = jax.tree.map(np.asarray, jax.tree.leaves(nnx.state((model, optimizer))))
    skip(model, optimizer, X * np.nan)
    after = jax.tree.leaves(nnx.state((model, optimizer)))
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


def test_sharded_with_8_bit_moments() -> None:
    tx = jzero.optim.adamw(1e-2, state="int8")
    alone, step = create(tx), nnx.jit(fused_step)
    want = [float(step(*alone, X)) for _ in range(3)]
    step = jzero.shard_train_step(
        fused_step, stage=3, mesh=mesh_of(8), config=SHARD_ALL
    )
    model, optimizer = create(tx)
    got = [float(step(model, optimizer, X)) for _ in range(3)]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    shard = model.kernel[...].addressable_shards[0].data
    assert shard.size * 8 == model.kernel[...].size
    codes = [a for a in jax.tree.leaves(nnx.state(optimizer)) if a.dtype == jnp.int8]
    assert codes[0].addressable_shards[0].data.size * 8 == codes[0].size


def test_other_optimizers_are_refused() -> None:
    model, optimizer = create(optax.sgd(1e-2))
    with pytest.raises(ConfigError, match="has no apply"):
        jzero.optim.apply_to_nnx(optimizer, model, nnx.grad(loss_fn)(model, X))
