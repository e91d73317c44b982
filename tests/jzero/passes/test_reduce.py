"""Gradients are constrained where they are born."""

from __future__ import annotations

from jzero.compat.jaxpr import inner
from jzero.ir.rules import CONSTRAINT
from jzero.passes.reduce import reduce_at_birth
from tests.jzero.passes.steps import equations, trace_program


def constrained_primitives(step) -> list[str]:
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
