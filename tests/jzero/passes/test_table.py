"""One table, model by pass: what every pass keeps."""

from __future__ import annotations

import numpy as np
import pytest

from jzero.compat.jaxpr import inner
from jzero.passes.pipeline import PASSES, run_passes
from tests.jzero.passes.steps import (
    PROGRAMS,
    check_types,
    run_here,
    run_spread,
    trace_program,
)


@pytest.mark.parametrize("stage", (0, 2, 3))
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_pass_in_turn(name: str, stage: int) -> None:
    step, plan = trace_program(name, stage)
    for rewrite in PASSES:
        before = str(step.jaxpr)
        new = rewrite(step, plan)
        assert str(step.jaxpr) == before, "the input was changed"
        check_types(new.jaxpr)
        again = rewrite(new, plan)
        assert again.jaxpr is new.jaxpr, f"{rewrite.__name__} is not idempotent"
        assert inner(new.jaxpr).effects == inner(step.jaxpr).effects
        step = new


@pytest.mark.parametrize("stage", (1, 3))
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_rewritten_step_computes_the_same(name: str, stage: int) -> None:
    step, plan = trace_program(name, stage)
    program = PROGRAMS[name]
    args = program.arguments()
    wanted = run_here(step.jaxpr, args)
    got = run_spread(run_passes(step, plan), plan, args)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(
            np.asarray(one, np.float64) if one.dtype.kind == "f" else one,
            np.asarray(other, np.float64) if other.dtype.kind == "f" else other,
            rtol=program.rtol,
            atol=program.rtol,
        )
