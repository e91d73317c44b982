"""Saved and restored: frozen weights, tied ones, nnx objects, scales, counters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jzero
from tests.end_to_end.oracle import SHARD_ALL, mesh_of
from tests.jzero.checkpoint.small import assert_same, saved, whole


def rows(i: int) -> np.ndarray:
    return np.random.default_rng(i).normal(size=(16, 24)).astype(np.float32)


LORA_TX = optax.adam(1e-2)


def frozen_step(state: Any, x: jax.Array) -> Any:
    params = state["params"]

    def loss(lora: Any) -> jax.Array:
        return (jnp.tanh(x @ (params["base"] + lora["down"] @ lora["up"])) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(params["lora"])
    updates, opt = LORA_TX.update(grads, state["opt"], params["lora"])
    lora = optax.apply_updates(params["lora"], updates)
    return {"params": {"base": params["base"], "lora": lora}, "opt": opt}, value


def create_frozen(seed: int) -> Any:
    keys = jax.random.split(jax.random.key(seed), 3)
    lora = {
        "down": jax.random.normal(keys[1], (24, 4)),
        "up": jax.random.normal(keys[2], (4, 16)),
    }
    base = jax.random.normal(keys[0], (24, 16))
    return {"params": {"base": base, "lora": lora}, "opt": LORA_TX.init(lora)}


def test_a_frozen_base_is_restored_into_another_seed(tmp_path: Path) -> None:
    step = jzero.shard_train_step(frozen_step, config=SHARD_ALL)
    state = step.init(create_frozen, 0)
    base = whole(state["params"]["base"])
    for i in range(3):
        state, _ = step(state, rows(i))
    kept = whole(state)
    saved(tmp_path, step, state, 2)
    other = jzero.shard_train_step(frozen_step, mesh=mesh_of(4), config=SHARD_ALL)
    with jzero.Checkpointer(tmp_path, other) as ckpt:
        state, _ = ckpt.restore_or_init(create_frozen, 1)
    assert_same(whole(state), kept)
    assert_same(whole(state["params"]["base"]), base)
    assert len({s.device for s in state["params"]["base"].addressable_shards}) == 4
    assert state["params"]["base"].addressable_shards[0].data.size == 24 * 16 // 4


class TiedNet(nnx.Module):
    """Embeds and predicts by one table, with dropout, statistics and keys."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(32, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.drop = nnx.Dropout(0.2, rngs=rngs)
        self.head = nnx.Embed(32, 16, rngs=rngs)
        self.head.embedding = self.embed.embedding

    def __call__(self, ids: jax.Array) -> jax.Array:
        return self.head.attend(self.drop(jnp.tanh(self.norm(self.embed(ids)))))


def make_objects(key: jax.Array) -> tuple[TiedNet, nnx.Optimizer]:
    model = TiedNet(nnx.Rngs(key))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def nnx_step(model: TiedNet, optimizer: nnx.Optimizer, ids: jax.Array) -> jax.Array:
    def loss(m: TiedNet) -> jax.Array:
        logits = m(ids)
        return optax.softmax_cross_entropy_with_integer_labels(logits, ids).mean()

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


def ids(i: int) -> np.ndarray:
    return (np.arange(16, dtype=np.int32) * 7 + i) % 32


def test_nnx_objects_go_on_where_they_were(tmp_path: Path) -> None:
    """With a shared Variable, batch statistics and the keys of dropout."""
    step = jzero.shard_train_step(nnx_step, config=SHARD_ALL)
    objects = step.init(make_objects, jax.random.key(0))
    losses = []
    with jzero.Checkpointer(tmp_path, step) as ckpt:
        for i in range(4):
            losses.append(float(step(*objects, ids(i))))
            if i == 1:
                ckpt.save(i, objects)
    again = jzero.shard_train_step(nnx_step, config=SHARD_ALL)
    with jzero.Checkpointer(tmp_path, again) as ckpt:
        objects, start = ckpt.restore_or_init(make_objects, jax.random.key(5))
        assert start == 2
        assert objects[0].head.embedding is objects[0].embed.embedding
        assert [float(again(*objects, ids(i))) for i in (2, 3)] == losses[2:]
        back = ckpt.restore(1, like=objects)
        assert back[0] is objects[0]
        assert float(again(*objects, ids(2))) == losses[2]
    names = [leaf.path for leaf in ckpt_leaves(tmp_path / "1")]
    assert len([n for n in names if n.endswith("embedding")]) == 3  # and two moments


def ckpt_leaves(step: Path) -> Any:
    text = (step / "jzero" / "manifest.json").read_text()
    return jzero.checkpoint.manifest.Manifest.from_json(text).leaves


def scaled_step(state: Any, x: jax.Array) -> Any:
    """Halves its scale on overflow, as mixed precision does; averages its weights."""
    grad = jax.grad(lambda w: ((x @ w) * state["scale"]).mean())(state["w"])
    is_finite = jnp.isfinite(grad).all() & (state["scale"] < 2.0**12)
    w = jnp.where(is_finite, state["w"] - 0.1 * grad / state["scale"], state["w"])
    scale = jnp.where(is_finite, state["scale"], state["scale"] / 2)
    ema = jax.tree.map(lambda e: 0.9 * e + 0.1 * w, state["ema"])
    new = {"w": w, "ema": ema, "scale": scale, "step": state["step"] + 1}
    return new, w.sum()


def create_scaled() -> Any:
    w = jnp.ones((24, 8))
    return {"w": w, "ema": w, "scale": jnp.float32(2.0**14), "step": 0}


@pytest.mark.parametrize("stage", (0, 3))
def test_scales_and_averages_and_counters_go_on(tmp_path: Path, stage: int) -> None:
    step = jzero.shard_train_step(scaled_step, stage=stage, config=SHARD_ALL)
    state = step.init(create_scaled)
    sums: list[float] = []
    with jzero.Checkpointer(tmp_path, step) as ckpt:
        for i in range(6):
            state, total = step(state, rows(i))
            sums.append(float(total))
            ckpt.save(i, state)
        for back in (1, 3):
            state, more = ckpt.restore(back, like=state), []
            assert int(state["step"]) == back + 1
            for i in range(back + 1, 6):
                state, total = step(state, rows(i))
                more.append(float(total))
            assert more == sums[back + 1 :]
