"""Loops keep every device on its own rows."""

from __future__ import annotations

from jzero.compat.jaxpr import inner
from jzero.ir.rules import CONSTRAINT
from jzero.passes.spread_batch import spread_batch
from tests.jzero.passes.steps import equations, line_mesh, trace_program


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
