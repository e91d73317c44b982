"""Barriers bound the gradients that wait."""

from __future__ import annotations

import pytest

from jzero.compat.jaxpr import JaxprEqn, inner
from jzero.config import ZeroConfig
from jzero.ir.rules import BARRIER, CONSTRAINT
from jzero.passes.reduce import reduce_at_birth
from jzero.passes.window import window
from tests.jzero.passes.programs import ROWS, WIDTH
from tests.jzero.passes.steps import equations, trace_program


def tied(
    window_bytes: int, stage: int = 3, name: str = "unrolled_remat"
) -> tuple[list[JaxprEqn], list[JaxprEqn]]:
    """The barriers that the pass adds, and the program's equations."""
    config = ZeroConfig(persistence_threshold=0, reduce_window_bytes=window_bytes)
    step, plan = trace_program(name, stage, config=config)
    step = window(reduce_at_birth(step, plan), plan)
    eqns = list(inner(step.jaxpr).eqns)
    return [e for e in eqns if e.primitive.name == BARRIER], eqns


def test_stage_1_has_no_window() -> None:
    assert tied(0, stage=1)[0] == []


def test_a_large_window_adds_nothing() -> None:
    assert tied(2**40)[0] == []


def test_each_layer_waits_for_the_gradients_of_the_last() -> None:
    barriers, eqns = tied(1)
    assert len(barriers) == 3  # nothing comes after the first layer's gradient
    for barrier in barriers:
        activation, *gradients = barrier.outvars
        assert len(gradients) == 1
        readers = [e for e in eqns if any(v is activation for v in e.invars)]
        assert readers, "the backward pass goes on from the tied activation"


def test_two_layers_at_a_time() -> None:
    one = 4 * 16 * 16
    barriers, _ = tied(one + 1)
    assert [len(b.outvars) for b in barriers] == [3]


@pytest.mark.parametrize("name", ["unrolled", "unrolled_half", "unrolled_remat"])
def test_a_barrier_ties_gradients_to_rows_that_stay_in_place(name: str) -> None:
    barriers, eqns = tied(1, name=name)
    made = {v: e for e in eqns for v in e.outvars}
    assert barriers
    for barrier in barriers:
        rows, *gradients = barrier.invars
        assert rows.aval.shape == (ROWS, WIDTH)
        assert all(g.aval.shape == (WIDTH, WIDTH) for g in gradients)
        pinned = made[rows]
        assert pinned.primitive.name == CONSTRAINT
        assert pinned.params["sharding"].spec[0] == "data"


def test_every_gradient_waits_once() -> None:
    barriers, _ = tied(1, name="unrolled")
    waited = [v for b in barriers for v in b.invars[1:]]
    assert len(waited) == len(set(waited)) == 3


def test_a_window_counts_bytes_of_whole_gradients() -> None:
    one = 2 * WIDTH * WIDTH  # in bfloat16
    for num, wanted in ((1, [2, 2, 2]), (2, [3]), (3, [4]), (4, [])):
        barriers, _ = tied(num * one, name="unrolled_half")
        assert [len(b.outvars) for b in barriers] == wanted


def test_gradients_that_stay_whole_count_too() -> None:
    config = ZeroConfig(persistence_threshold=10**6, reduce_window_bytes=1)
    step, plan = trace_program("unrolled", 3, config=config)
    assert not any(p.is_sharded for p in plan.state)
    new = window(step, plan)
    assert any(e.primitive.name == BARRIER for e in inner(new.jaxpr).eqns)


def test_a_rematerialized_body_is_one_unit() -> None:
    config = ZeroConfig(persistence_threshold=0, reduce_window_bytes=0)
    step, plan = trace_program("unrolled_remat", 3, config=config)
    new = window(reduce_at_birth(step, plan), plan)
    at_top = [e for e in inner(new.jaxpr).eqns if e.primitive.name == BARRIER]
    everywhere = [e for e in equations(new.jaxpr) if e.primitive.name == BARRIER]
    assert len(at_top) == len(everywhere)


def test_a_model_of_one_layer_has_nothing_to_wait_for() -> None:
    config = ZeroConfig(persistence_threshold=0, reduce_window_bytes=1)
    for name in ("second_order", "orthogonal_update", "patched"):
        step, plan = trace_program(name, 3, config=config)
        assert window(step, plan).jaxpr is step.jaxpr
