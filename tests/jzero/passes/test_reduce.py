"""Gradients are constrained where they are born."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jzero.compat.jaxpr import JaxprEqn, inner
from jzero.config import ZeroConfig
from jzero.ir.bodies import bodies_of
from jzero.ir.rules import CONSTRAINT
from jzero.ir.trace import TracedStep
from jzero.passes.reduce import reduce_at_birth
from tests.jzero.passes.programs import WIDTH, mlp_square
from tests.jzero.passes.steps import (
    EVERYTHING,
    equations,
    grid_mesh,
    trace_program,
    trace_step,
)


def constraints(step: TracedStep) -> list[JaxprEqn]:
    return [e for e in equations(step.jaxpr) if e.primitive.name == CONSTRAINT]


def constrained_primitives(step: TracedStep) -> list[str]:
    """Primitives whose results a constraint places, bodies included."""
    made = {v: e for e in equations(step.jaxpr) for v in e.outvars}
    return [
        made[e.invars[0]].primitive.name if e.invars[0] in made else "input"
        for e in equations(step.jaxpr)
        if e.primitive.name == CONSTRAINT
    ]


def test_stage_0_is_left_alone() -> None:
    step, plan = trace_program("mlp", 0)
    assert reduce_at_birth(step, plan) is step


def test_every_weight_gradient_is_placed_behind_its_dot() -> None:
    step, plan = trace_program("mlp", 3)
    found = constrained_primitives(reduce_at_birth(step, plan))
    assert found.count("dot_general") == 2
    assert found.count("reduce_sum") == 2


def test_sixteen_bit_gradients_are_placed_before_the_cast() -> None:
    step, plan = trace_program("unrolled_half", 3)
    new = reduce_at_birth(step, plan)
    placed = [e for e in equations(new.jaxpr) if e.primitive.name == CONSTRAINT]
    assert {str(e.outvars[0].aval.dtype) for e in placed} == {"bfloat16"}


def test_gradients_of_a_scanned_layer_are_placed_in_the_loop() -> None:
    step, plan = trace_program("scanned_half_remat", 3)
    new = reduce_at_birth(step, plan)
    top = [e.primitive.name for e in inner(new.jaxpr).eqns]
    assert CONSTRAINT not in top
    assert "dot_general" in constrained_primitives(new)


def test_an_accumulator_is_a_shard_in_every_turn() -> None:
    step, plan = trace_program("accumulate", 2)
    new = reduce_at_birth(step, plan)
    loops = [e for e in inner(new.jaxpr).eqns if e.primitive.name == "scan"]
    inside = [
        e
        for loop in loops
        for e in equations(loop.params["jaxpr"])
        if e.primitive.name == CONSTRAINT
    ]
    assert inside
    assert "broadcast_in_dim" in constrained_primitives(new)  # where it starts


def test_a_gradient_lies_as_its_parameter_or_turned_around() -> None:
    step, plan = trace_program("unrolled", 3)
    specs = {
        tuple(e.params["sharding"].spec)
        for e in constraints(reduce_at_birth(step, plan))
    }
    assert {p.spec for p in plan.state} == {PartitionSpec("data")}
    assert specs == {(None, "data")}  # the transpose comes after the birth


@pytest.mark.parametrize("name", ["branches", "when_finite", "custom_rules", "deep"])
def test_births_inside_bodies_are_found(name: str) -> None:
    step, plan = trace_program(name, 3)
    new = reduce_at_birth(step, plan)
    assert "dot_general" in constrained_primitives(new)


def test_a_frozen_parameter_gets_no_constraint() -> None:
    step, plan = trace_program("passed_through", 3)
    placed = constraints(reduce_at_birth(step, plan))
    assert placed
    assert all(e.outvars[0].aval.shape == (WIDTH, WIDTH) for e in placed)


def test_a_whole_parameter_is_a_shard_only_for_its_update() -> None:
    """With `replicate_params` the model reads the array, the update its shard."""
    config = ZeroConfig(persistence_threshold=0, replicate_params=True)
    step, plan = trace_program("unrolled", 2, config=config)
    new = reduce_at_birth(step, plan)
    inputs = set(inner(new.jaxpr).invars)
    borrowed = {e.outvars[0] for e in constraints(new) if e.invars[0] in inputs}
    assert len(borrowed) == 4
    readers = {
        e.primitive.name
        for e in inner(new.jaxpr).eqns
        if any(v is b for v in e.invars for b in borrowed)
    }
    assert readers == {"sub"}


def test_an_update_that_is_no_arithmetic_is_placed_all_the_same() -> None:
    def step(params: Any, slots: Any, x: jax.Array) -> Any:
        return {"w": x.T @ x}, slots, 0.0

    w = {"w": jnp.ones((WIDTH, WIDTH))}
    traced, plan = trace_step(step, (w, w, jnp.ones((32, WIDTH))), 3)
    assert constrained_primitives(reduce_at_birth(traced, plan)) == ["dot_general"]


def test_the_same_constraint_of_the_user_is_not_doubled() -> None:
    traced, _ = trace_program("second_order", 3)
    place = NamedSharding(traced.mesh, PartitionSpec("data"))

    def step(params: Any, slots: Any, x: jax.Array) -> Any:
        grads = jax.grad(mlp_square)(params, x)
        placed = jax.lax.with_sharding_constraint(grads["w"], place)
        return {"w": params["w"] - placed}, slots, 0.0

    w = {"w": jnp.ones((WIDTH, WIDTH))}
    traced, plan = trace_step(step, (w, w, jnp.ones((32, WIDTH))), 3)
    assert reduce_at_birth(traced, plan).jaxpr is traced.jaxpr


def test_both_axes_are_asked_for_beside_one_of_the_user() -> None:
    mesh, base = grid_mesh(), PartitionSpec("model")
    step, plan = trace_program("tied", 3, config=EVERYTHING, mesh=mesh, base_spec=base)
    specs = {
        tuple(e.params["sharding"].spec)
        for e in constraints(reduce_at_birth(step, plan))
    }
    assert specs <= {("model", "data"), ("data", "model")}
    assert specs


def test_a_small_leaf_s_gradient_is_left_to_the_compiler() -> None:
    config = ZeroConfig(persistence_threshold=100)
    step, plan = trace_program("mlp", 3, config=config)  # the biases are smaller
    placed = constraints(reduce_at_birth(step, plan))
    assert {len(e.outvars[0].aval.shape) for e in placed} == {2}


def test_loops_that_hold_no_state_stay_the_same_objects() -> None:
    step, plan = trace_program("power_iteration", 3)
    new = reduce_at_birth(step, plan)
    old_loops = [e for e in inner(step.jaxpr).eqns if bodies_of(e)]
    new_loops = [e for e in inner(new.jaxpr).eqns if bodies_of(e)]
    assert all(a is b for a, b in zip(old_loops, new_loops, strict=True))
