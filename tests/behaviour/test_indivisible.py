"""Shapes that the devices do not divide: right values, and nothing hidden."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import jzero
from tests.behaviour.training import assert_like_one_device
from tests.end_to_end.oracle import SHARD_ALL, mesh_of

# Shape -> spec of it on so many devices.
SPECS: dict[tuple[int, ...], dict[int, P]] = {
    (17, 16): {8: P(None, "data"), 6: P(), 3: P()},
    (1002, 8): {8: P(None, "data"), 6: P("data"), 3: P("data")},
    (7,): {8: P(), 6: P(), 3: P()},
    (3, 5): {8: P(), 6: P(), 3: P("data")},
    (24, 40): {8: P("data"), 6: P("data"), 3: P("data")},
}
TX = optax.adam(1e-2)


def params() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    return {str(s): jnp.asarray(rng.normal(size=s), jnp.float32) for s in SPECS}


def step(state: Any, x: jax.Array) -> Any:
    def loss(p: Any) -> jax.Array:
        total = jnp.zeros(())
        for w in p.values():
            w = w.reshape(w.shape[0], -1)
            y = jnp.tanh(x[:, :1] * w[:, 0][None])  # some rows and all columns
            total = total + (y @ w).mean() ** 2
        return total

    value, grads = jax.value_and_grad(loss)(state["params"])
    updates, opt = TX.update(grads, state["opt"], state["params"])
    new = optax.apply_updates(state["params"], updates)
    return {"params": new, "opt": opt}, {"loss": value}


def batches() -> list[tuple[np.ndarray]]:
    draw = np.random.default_rng(1).normal
    return [(draw(size=(24, 2)).astype(np.float32),) for _ in range(3)]


@pytest.mark.parametrize("stage", (1, 3))
@pytest.mark.parametrize("num_devices", (8, 6, 3))
def test_values_and_specs(num_devices: int, stage: int) -> None:
    start = {"params": params(), "opt": TX.init(params())}
    with jax.enable_x64(True):
        wide = jax.tree.map(
            lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, start
        )
        state, _ = assert_like_one_device(
            step, wide, batches(), stage=stage, num_devices=num_devices, rtol=1e-9
        )
    for shape, specs in SPECS.items():
        for leaf in (state["params"][str(shape)], state["opt"][0].nu[str(shape)]):
            assert leaf.shape == shape
            assert leaf.sharding.spec == specs[num_devices], shape


@pytest.mark.parametrize("num_devices", (8, 6, 3))
def test_what_stays_whole_is_listed_with_its_bytes(num_devices: int) -> None:
    sharded = jzero.shard_train_step(step, mesh=mesh_of(num_devices), config=SHARD_ALL)
    start = {"params": params(), "opt": TX.init(params())}
    plan = sharded.plan(start, batches()[0][0])
    whole = {s for s, specs in SPECS.items() if specs[num_devices] == P()}
    listed = {p.path: p for p in plan.replicated_large}
    assert {p.shape for p in listed.values()} == whole
    for shape in whole:
        leaf = listed[f"state['params']['{shape}']"]
        assert leaf.local_bytes == leaf.global_bytes == 4 * np.prod(shape)
        assert f"no dim of {shape} divides by data={num_devices}" in leaf.reason
        assert leaf.path in str(plan)
