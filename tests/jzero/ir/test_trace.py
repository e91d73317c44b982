"""Marks, demands and batch dims of a step's inputs follow from its plan."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import jzero
from jzero.ir.specs import to_dims
from jzero.ir.trace import batch_split

SHARD_ALL = jzero.ZeroConfig(persistence_threshold=0)


def plan(stage: int = 3):
    def step(state, x):
        return jax.tree.map(lambda p: p - x.mean(), state), x.sum()

    state = {"params": {"w": jnp.ones((16, 8)), "odd": jnp.ones((3,))}}
    sharded = jzero.shard_train_step(step, stage=stage, config=SHARD_ALL)
    return sharded.plan(state, np.ones((32, 4), np.float32))


def test_a_value_split_along_one_dim() -> None:
    split = batch_split(plan())
    assert (split.entry, split.num_parts) == ("data", 8)
    free = PartitionSpec.UNCONSTRAINED
    assert split.dims((16, 3), 0) == ("data", free)
    assert split.dims((3, 16), 1) == (free, "data")
    assert split.dims((12, 3), 0) is None
    assert split.dims((0, 3), 0) is None
    assert split.dims((16,), 1) is None


def test_only_sharded_leaves_are_marked() -> None:
    placed = {p.path: to_dims(p.spec, len(p.shape)) for p in plan().state}
    assert placed["state['params']['w']"] == ("data", None)
    assert placed["state['params']['odd']"] == (None,)
    assert all(not any(p.spec) for p in plan(stage=0).state)
