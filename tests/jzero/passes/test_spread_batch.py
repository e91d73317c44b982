"""Loops keep every device on its own rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jzero.compat.jaxpr import inner
from jzero.config import ZeroConfig
from jzero.ir.bodies import bodies_of
from jzero.ir.rules import CONSTRAINT
from jzero.passes.spread_batch import spread_batch
from tests.jzero.passes.programs import ROWS, WIDTH
from tests.jzero.passes.steps import (
    equations,
    grid_mesh,
    line_mesh,
    trace_program,
    trace_step,
)


def test_micro_batches_are_split_along_their_rows() -> None:
    step, plan = trace_program("accumulate", 0, mesh=line_mesh(4))
    new = spread_batch(step, plan)
    (eqn,) = [e for e in inner(new.jaxpr).eqns if e.primitive.name == CONSTRAINT]
    spec = eqn.params["sharding"].spec
    assert spec[0] is None and spec[1] == "data"


def test_what_a_loop_carries_is_split_too() -> None:
    step, plan = trace_program("scanned", 0)
    new = spread_batch(step, plan)
    loops = [e for e in inner(new.jaxpr).eqns if e.primitive.name == "scan"]
    for loop in loops:
        specs = [
            e.params["sharding"].spec
            for e in equations(loop.params["jaxpr"])
            if e.primitive.name == CONSTRAINT
        ]
        assert any(spec[0] == "data" for spec in specs)


def test_one_device_needs_nothing() -> None:
    step, plan = trace_program("accumulate", 3, mesh=line_mesh(1))
    assert spread_batch(step, plan) is step


@pytest.mark.parametrize("stage", [0, 3])
def test_micro_batches_too_small_to_split_are_left_alone(stage: int) -> None:
    w = {"w": jnp.ones((WIDTH, WIDTH))}

    def cut(params: object, slots: object, x: jax.Array) -> object:
        micros = x.reshape(8, ROWS // 8, WIDTH)  # four rows on eight devices
        total, _ = jax.lax.scan(lambda c, x: (c + x.sum(), None), 0.0, micros)
        return params, slots, total

    args = (w, w, jnp.ones((ROWS, WIDTH)))
    step, plan = trace_step(cut, args, stage)
    assert spread_batch(step, plan).jaxpr is step.jaxpr


def test_a_placement_of_the_user_stands() -> None:
    place = NamedSharding(line_mesh(), PartitionSpec("data"))
    w = {"w": jnp.ones((WIDTH, WIDTH))}

    def run(params: object, slots: object, x: jax.Array) -> object:
        def turn(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.lax.with_sharding_constraint(x, place) * 2, None

        x, _ = jax.lax.scan(turn, x, None, length=2)
        return params, slots, x

    step, plan = trace_step(run, (w, w, jnp.ones((ROWS, WIDTH))), 3)
    assert spread_batch(step, plan).jaxpr is step.jaxpr


def test_both_axes_of_a_batch_split_its_rows() -> None:
    config = ZeroConfig(persistence_threshold=0, batch_axis=("data", "model"))
    step, plan = trace_program("scanned", 3, config=config, mesh=grid_mesh())
    new = spread_batch(step, plan)
    specs = [
        e.params["sharding"].spec
        for e in equations(new.jaxpr)
        if e.primitive.name == CONSTRAINT
    ]
    assert specs
    assert {spec[0] for spec in specs} == {("data", "model")}


def test_other_dims_are_left_to_the_compiler() -> None:
    step, plan = trace_program("scanned", 3)
    new = spread_batch(step, plan)
    for eqn in equations(new.jaxpr):
        if eqn.primitive.name == CONSTRAINT:
            assert eqn.params["unconstrained_dims"] == {1}


def test_loops_without_rows_stay_the_same_objects() -> None:
    step, plan = trace_program("power_iteration", 3)
    assert any(bodies_of(e) for e in inner(step.jaxpr).eqns)
    assert spread_batch(step, plan).jaxpr is step.jaxpr
