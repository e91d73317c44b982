"""Running a small step `(state, *batch) -> (state, metrics)` the way users do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jzero
from tests.end_to_end.oracle import SHARD_ALL, assert_trees_close, mesh_of

Step = Callable[..., Any]


def train(
    step_fn: Step,
    state: Any,
    batches: Iterable[tuple[Any, ...]],
    *,
    stage: int = 3,
    num_devices: int = 8,
    config: jzero.ZeroConfig = SHARD_ALL,
) -> tuple[Any, list[Any]]:
    """Runs one step per batch under jzero.

    Returns:
      (the last state, the metrics of every step).
    """
    step = jzero.shard_train_step(
        step_fn, stage=stage, mesh=mesh_of(num_devices), config=config
    )
    state, seen = step.shard(state), []
    for batch in batches:
        state, metrics = step(state, *batch)
        seen.append(metrics)
    return state, seen


def train_alone(
    step_fn: Step, state: Any, batches: Iterable[tuple[Any, ...]]
) -> tuple[Any, list[Any]]:
    """Runs one step per batch on one device, without jzero."""
    alone, seen = jax.jit(step_fn), []
    state = jax.tree.map(jnp.asarray, state)
    for batch in batches:
        state, metrics = alone(state, *batch)
        seen.append(metrics)
    return state, seen


def assert_like_one_device(
    step_fn: Step,
    state: Any,
    batches: Iterable[tuple[Any, ...]],
    *,
    rtol: float = 1e-5,
    **settings: Any,
) -> tuple[Any, list[Any]]:
    """Demands that state and metrics equal one device's; returns jzero's."""
    batches = list(batches)
    got = train(step_fn, state, batches, **settings)
    assert_trees_close(got, train_alone(step_fn, state, batches), rtol=rtol)
    return got


def assert_same_on_every_device(tree: Any) -> None:
    """Demands that each device holds the same bits of whole arrays."""
    for leaf in jax.tree.leaves(tree):
        first, *others = [np.asarray(s.data) for s in leaf.addressable_shards]
        assert first.shape == leaf.shape
        for other in others:
            np.testing.assert_array_equal(first, other)


def num_parts(leaf: jax.Array) -> int:
    """How many times fewer elements a device holds than the whole array."""
    return leaf.size // leaf.addressable_shards[0].data.size
