"""A small training whose state has leaves of every kind, for tests of checkpoints."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

import jzero

SHARD_ALL = jzero.ZeroConfig(persistence_threshold=0)


class State(NamedTuple):
    """A training state; the optimizer's holds masked nodes and empty states."""

    params: Any
    opt_state: Any
    key: jax.Array
    scale: jax.Array
    empty: jax.Array
    table: jax.Array
    half: jax.Array


TX = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.masked(
        optax.adamw(optax.linear_schedule(3e-2, 1e-3, 8)), {"up": True, "down": False}
    ),
    optax.masked(optax.sgd(1e-2), {"up": False, "down": True}),
)


def create(seed: int = 0) -> State:
    one, two = jax.random.split(jax.random.key(seed))
    params = {
        "up": jax.random.normal(one, (24, 16)) * 0.2,
        "down": jax.random.normal(two, (16, 8)) * 0.2,
    }
    return State(
        params=params,
        opt_state=TX.init(params),
        key=jax.random.key(seed + 1),
        scale=jnp.float32(2.0**10),
        empty=jnp.zeros((0, 3), jnp.float16),
        table=jnp.arange(16_777_216, 16_777_221, dtype=jnp.int32),
        half=jax.random.normal(one, (8, 8), jnp.bfloat16),
    )


@functools.cache
def _numbers(seed: int) -> State:
    return whole(create(seed))


def begin(step: Any, seed: int = 0) -> State:
    """Places the state of a seed; quicker than to have `step.init` compiled."""
    return step.shard(_numbers(seed))


def train_step(state: State, batch: jax.Array) -> tuple[State, jax.Array]:
    key, now = jax.random.split(state.key)

    def loss(params: Any) -> jax.Array:
        hidden = jnp.tanh(batch @ params["up"])
        hidden = jnp.where(jax.random.bernoulli(now, 0.9, hidden.shape), hidden, 0.0)
        return ((hidden @ params["down"] - 1.0) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(state.params)
    updates, opt_state = TX.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return state._replace(params=params, opt_state=opt_state, key=key), value


def rows(i: int) -> np.ndarray:
    return np.random.default_rng(i).normal(size=(16, 24)).astype(np.float32)


def make_step(num_devices: int = 8, stage: int = 3, **settings: Any) -> Any:
    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("data",))
    config = settings.pop("config", SHARD_ALL)
    return jzero.shard_train_step(
        train_step, stage=stage, mesh=mesh, config=config, **settings
    )


def train(step: Any, state: Any, numbers: range) -> tuple[Any, list[float]]:
    losses = []
    for i in numbers:
        state, loss = step(state, rows(i))
        losses.append(float(loss))
    return state, losses


def bits(leaf: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Everything that makes two leaves the same: dtype, shape, and every bit."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return str(leaf.dtype), leaf.shape, bits(jax.random.key_data(leaf))[2]
    return str(leaf.dtype), tuple(leaf.shape), np.asarray(leaf).tobytes()


def whole(tree: Any) -> Any:
    """Copies a tree, so that it outlives the state."""

    def copy(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data = np.array(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        return np.array(leaf)

    return jax.tree.map(copy, tree)


def assert_same(got: Any, wanted: Any) -> None:
    """Asserts equal tree types and bit-equal leaves."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    rows, _ = jax.tree_util.tree_flatten_with_path(wanted)
    for (path, want), leaf in zip(rows, jax.tree.leaves(got), strict=True):
        assert bits(leaf) == bits(want), jax.tree_util.keystr(path)


def saved(folder: Path, step: Any, state: Any, i: int = 0, **settings: Any) -> Path:
    """Saves one state and returns the folder."""
    with jzero.Checkpointer(folder, step, **settings) as ckpt:
        ckpt.save(i, state)
    return folder
