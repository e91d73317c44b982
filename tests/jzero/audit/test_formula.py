from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

import jzero
from jzero.audit.formula import num_gathers, plan_traffic
from jzero.plan.plan import Plan

BIG, SMALL = 128 * 64, 100


def plan_of(
    stage: int,
    axes: dict[str, int] | None = None,
    num_micro_batches: int = 1,
    **settings: Any,
) -> Plan:
    axes = axes or {"data": 8}
    shape = tuple(axes.values())
    devices = np.array(jax.devices()[: np.prod(shape)]).reshape(shape)
    mesh = Mesh(devices, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
    config = jzero.ZeroConfig(persistence_threshold=1000, **settings)

    def train_step(params: dict[str, jax.Array], x: jax.Array):
        def loss_fn(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
            return (x @ p["big"]).sum() + p["small"].sum()

        def add(total: Any, x: jax.Array) -> tuple[Any, None]:
            found = jax.value_and_grad(loss_fn)(params, x)
            return jax.tree.map(jnp.add, total, found), None

        if num_micro_batches == 1:
            loss, grads = jax.value_and_grad(loss_fn)(params, x)
        else:
            zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
            xs = x.reshape(num_micro_batches, -1, 128)
            (loss, grads), _ = jax.lax.scan(add, zeros, xs)
        return jax.tree.map(lambda p, g: p - g, params, grads), loss

    step = jzero.shard_train_step(train_step, stage=stage, mesh=mesh, config=config)
    params = {"big": jnp.ones((128, 64)), "small": jnp.ones((SMALL,))}
    return step.plan(params, jax.ShapeDtypeStruct((16, 128), jnp.float32))


RING = BIG * 2 * 7 // 8
# Whole leaves: the sum of a gradient passes twice around the ring.
REST = 2 * SMALL * 2 * 7 // 8


@pytest.mark.parametrize(
    ("stage", "gathered", "scattered", "reduced"),
    [
        (0, 0, 0, 2 * RING + REST),
        (1, RING, RING, REST),
        (2, RING, RING, REST),
        (3, 2 * RING, RING, REST),
    ],
)
def test_bytes_by_stage(
    stage: int, gathered: int, scattered: int, reduced: int
) -> None:
    plan = plan_of(stage)
    traffic = plan_traffic(plan, elem_bytes=2)
    assert traffic.all_gather_bytes == gathered
    assert traffic.reduce_scatter_bytes == scattered
    assert traffic.all_reduce_bytes == reduced
    assert traffic.moved_bytes == gathered + scattered + reduced
    assert num_gathers(plan) == {0: 0, 1: 1, 2: 1, 3: 2}[stage]


def test_elements_of_four_bytes_move_twice_as_much() -> None:
    plan = plan_of(3)
    two, four = (plan_traffic(plan, elem_bytes=n).moved_bytes for n in (2, 4))
    assert four == 2 * two


def test_replicas_of_the_shards_sum_them_up() -> None:
    """2 replicas of 4 shards: what a reduce-scatter leaves is all-reduced by two."""
    axes = {"replica": 2, "data": 4}
    plan = plan_of(3, axes, axis="data", batch_axis=("replica", "data"))
    traffic = plan_traffic(plan, elem_bytes=2)
    ring = BIG * 2 * 3 // 4
    assert traffic.all_gather_bytes == 2 * ring
    assert traffic.reduce_scatter_bytes == ring
    # A quarter of the gradient is on each device; half of it goes each way.
    assert traffic.all_reduce_bytes == 2 * (BIG * 2 // 4) * 1 // 2 + REST


def test_parameters_kept_whole_move_two_rings() -> None:
    traffic = plan_traffic(plan_of(2, replicate_params=True), elem_bytes=2)
    assert traffic.moved_bytes == 2 * RING + REST


@pytest.mark.parametrize(("stage", "gathered"), [(0, 0), (1, RING), (3, 8 * RING)])
def test_micro_batches_reduce_and_gather_each_for_itself(
    stage: int, gathered: int
) -> None:
    plan = plan_of(stage, num_micro_batches=4)
    assert plan.num_micro_batches == 4
    assert "micro-batches: 4" in str(plan)
    traffic = plan_traffic(plan, elem_bytes=2)
    assert traffic.all_gather_bytes == gathered
    assert traffic.reduce_scatter_bytes == (4 * RING if stage else 0)
    assert traffic.all_reduce_bytes == 4 * (REST + (0 if stage else 2 * RING))
