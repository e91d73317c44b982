"""Barriers bound the gradients that wait."""

from __future__ import annotations

from jzero.compat.jaxpr import inner
from jzero.config import ZeroConfig
from jzero.ir.rules import BARRIER
from jzero.passes.reduce import reduce_at_birth
from jzero.passes.window import window
from tests.jzero.passes.steps import trace_program


def tied(window_bytes: int, stage: int = 3) -> tuple[list, list]:
    """The barriers that the pass adds, and the program's equations."""
    config = ZeroConfig(persistence_threshold=0, reduce_window_bytes=window_bytes)
    step, plan = trace_program("unrolled_remat", stage, config=config)
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
