"""Weights are whole where they are used, and nowhere else."""

from __future__ import annotations

from jzero.compat.jaxpr import inner
from jzero.config import ZeroConfig
from jzero.ir.rules import BARRIER, CONSTRAINT
from jzero.passes.gather import gather_at_use
from tests.jzero.passes.steps import equations, trace_program


def gathers(step, *, dtype: str | None = None) -> list:
    found = [e for e in equations(step.jaxpr) if e.primitive.name == CONSTRAINT]
    return [e for e in found if dtype in (None, str(e.outvars[0].aval.dtype))]


def at_top(step, name: str) -> int:
    return sum(e.primitive.name == name for e in inner(step.jaxpr).eqns)


def settings(**more: int | str) -> ZeroConfig:
    return ZeroConfig(persistence_threshold=0, **more)


def test_stage_0_is_left_alone() -> None:
    step, plan = trace_program("mlp", 0)
    assert gather_at_use(step, plan) is step


def test_sixteen_bits_move() -> None:
    step, plan = trace_program("unrolled_half", 3)
    new = gather_at_use(step, plan)
    assert gathers(new, dtype="bfloat16") and not gathers(new, dtype="float32")


def test_gather_dtype_param_moves_what_is_stored() -> None:
    step, plan = trace_program(
        "unrolled_half", 3, config=settings(gather_dtype="param")
    )
    new = gather_at_use(step, plan)
    assert gathers(new, dtype="float32") and not gathers(new, dtype="bfloat16")


def test_once_means_once_for_forward_recomputation_and_backward() -> None:
    step, plan = trace_program("unrolled_remat", 1)
    new = gather_at_use(step, plan)
    assert len(gathers(new)) == at_top(new, CONSTRAINT) == 4


def test_at_use_means_in_each_remat_body() -> None:
    step, plan = trace_program("unrolled_remat", 3)
    new = gather_at_use(step, plan)
    assert len(gathers(new)) == 8  # four layers, forward and backward


def test_a_stack_is_gathered_before_its_loop_or_slice_by_slice() -> None:
    for stage, at_top_wanted in ((1, 1), (3, 0)):
        step, plan = trace_program("scanned_half_remat", stage)
        new = gather_at_use(step, plan)
        assert at_top(new, CONSTRAINT) == at_top_wanted
        rank = {len(e.outvars[0].aval.shape) for e in gathers(new)}
        assert rank == ({3} if stage == 1 else {2})


def test_a_gathered_weight_is_dropped_beyond_the_window() -> None:
    kept, plan = trace_program("unrolled", 3)
    kept = gather_at_use(kept, plan)
    small = settings(reuse_window_bytes=0)
    dropped, plan = trace_program("unrolled", 3, config=small)
    dropped = gather_at_use(dropped, plan)
    # The first layer's input needs no gradient, so it is used once.
    assert len(gathers(kept)) == 4
    assert len(gathers(dropped)) == 7
    assert at_top(dropped, BARRIER) > at_top(kept, BARRIER) - 1


def test_gathers_wait_for_the_activation_they_serve() -> None:
    step, plan = trace_program("unrolled", 3, config=settings(prefetch_bytes=0))
    new = gather_at_use(step, plan)
    barriers = [e for e in inner(new.jaxpr).eqns if e.primitive.name == BARRIER]
    assert len(barriers) >= 3
    assert all(len(e.invars) == 2 for e in barriers)


def test_moments_are_never_gathered() -> None:
    step, plan = trace_program("mlp", 3)
    new = gather_at_use(step, plan)
    slots = set(inner(new.jaxpr).invars[len(plan.state) // 2 : len(plan.state)])
    assert not any(e.invars[0] in slots for e in gathers(new))
