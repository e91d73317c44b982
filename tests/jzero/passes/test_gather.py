"""Weights are whole where they are used, and nowhere else."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from jzero.compat.jaxpr import JaxprEqn, inner
from jzero.config import ZeroConfig
from jzero.ir.bodies import LOOP_NAMES, REMAT_NAMES, bodies_of
from jzero.ir.rules import BARRIER, CAST, CONSTRAINT
from jzero.ir.trace import TracedStep
from jzero.passes.gather import gather_at_use
from jzero.passes.reduce import reduce_at_birth
from tests.jzero.passes.programs import LAYERS, WIDTH, half, momentum
from tests.jzero.passes.steps import (
    equations,
    grid_mesh,
    trace_program,
    trace_step,
)


def gathers(step: TracedStep, *, dtype: str | None = None) -> list[JaxprEqn]:
    found = [e for e in equations(step.jaxpr) if e.primitive.name == CONSTRAINT]
    return [e for e in found if dtype in (None, str(e.outvars[0].aval.dtype))]


def at_top(step: TracedStep, name: str) -> int:
    return sum(e.primitive.name == name for e in inner(step.jaxpr).eqns)


def settings(**more: Any) -> ZeroConfig:
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


def remats(step: TracedStep) -> list[JaxprEqn]:
    return [e for e in equations(step.jaxpr) if e.primitive.name in REMAT_NAMES]


def test_weights_enter_bodies_in_the_dtype_of_the_model() -> None:
    step, plan = trace_program("unrolled_remat", 1)
    assert len(remats(step)) == 4  # the backward pass; forward is inlined
    for eqn in remats(gather_at_use(step, plan)):
        weights = [v.aval for v in eqn.invars if v.aval.shape == (WIDTH, WIDTH)]
        assert [str(a.dtype) for a in weights] == ["bfloat16"]
        assert all(e.primitive.name != CAST for e in body_of(eqn).eqns[:2])


def body_of(eqn: JaxprEqn) -> Any:
    (body,) = bodies_of(eqn)
    return inner(body.jaxpr)


def test_a_body_gathers_a_weight_once_although_it_uses_it_twice() -> None:
    step, plan = trace_program("named_policy", 3)  # each block uses w and w.T
    bodies = [body_of(e) for e in remats(gather_at_use(step, plan))]
    assert len(bodies) == 4
    for body in bodies:
        made = [e for e in body.eqns if e.primitive.name == CONSTRAINT]
        assert len(made) == 2  # w, and its transpose: another array
        assert len({e.invars[0] for e in made}) == 2


@pytest.mark.parametrize("stage", [1, 2])
def test_one_gather_per_weight_and_dtype(stage: int) -> None:
    """The same weight as it is and cast twice, at the top and in bodies."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        w = params["w"]
        block = jax.checkpoint(lambda w, x: jnp.tanh(x @ half(w)))
        h = block(w, block(w, half(x) @ half(w)))
        return (h.astype(jnp.float32) @ w).mean() + (x @ w).mean()

    args = [{"w": jnp.ones((WIDTH, WIDTH))}] * 2
    step, plan = trace_step(momentum(loss), (*args, jnp.ones((32, WIDTH))), stage)
    new = gather_at_use(step, plan)
    dtypes = sorted(str(e.outvars[0].aval.dtype) for e in gathers(new))
    assert dtypes == ["bfloat16", "float32"]
    assert at_top(new, CONSTRAINT) == 2


def test_a_widening_cast_comes_after_the_gather() -> None:
    step, plan = trace_program("narrow_then_wide", 3)
    new = gather_at_use(step, plan)
    dtypes = [str(e.outvars[0].aval.dtype) for e in gathers(new)]
    # w is rounded to eight bits and v is stored in sixteen.
    assert sorted(set(dtypes)) == ["bfloat16", "float8_e4m3fn"]


def test_the_cast_cannot_slip_behind_its_gather() -> None:
    step, plan = trace_program("unrolled_half", 3)
    new = gather_at_use(step, plan)
    made = {v: e for e in equations(new.jaxpr) for v in e.outvars}
    for eqn in gathers(new):
        before = made[eqn.invars[0]]
        assert before.primitive.name == BARRIER
        assert made[before.invars[0]].primitive.name == CAST


@pytest.mark.parametrize("name", ["scanned", "scanned_half", "scanned_half_remat"])
def test_no_whole_weight_leaves_a_loop(name: str) -> None:
    """What backward needs of a weight passes as a shard and is gathered again."""
    if name == "scanned_half":

        def loss(params: Any, x: jax.Array) -> jax.Array:
            turn = lambda x, w: (jnp.tanh(x @ half(w)), None)  # noqa: E731
            h, _ = jax.lax.scan(turn, half(x), params["w"])
            return h.astype(jnp.float32).mean()

        args = [{"w": jnp.ones((LAYERS, WIDTH, WIDTH))}] * 2
        step, plan = trace_step(momentum(loss), (*args, jnp.ones((32, WIDTH))), 3)
    else:
        step, plan = trace_program(name, 3)
    new = gather_at_use(step, plan)
    loops = [e for e in inner(new.jaxpr).eqns if e.primitive.name in LOOP_NAMES]
    assert len(loops) == 2
    for loop in loops:
        body = body_of(loop)
        made = [e for e in body.eqns if e.primitive.name == CONSTRAINT]
        wholes = {v for e in made for v in e.outvars}
        assert not wholes & set(body.outvars)
        assert made or any(e.primitive.name in REMAT_NAMES for e in body.eqns)


@pytest.mark.parametrize(("window_bytes", "in_loops"), [(0, True), (2**20, False)])
def test_a_small_weight_of_every_turn_is_gathered_before_the_loop(
    window_bytes: int, in_loops: bool
) -> None:
    config = settings(reuse_window_bytes=window_bytes)
    step, plan = trace_program("scan_of_one_weight", 3, config=config)
    new = gather_at_use(step, plan)
    loops = [e for e in inner(new.jaxpr).eqns if e.primitive.name in LOOP_NAMES]
    for loop in loops:
        inside = [e for e in body_of(loop).eqns if e.primitive.name == CONSTRAINT]
        assert bool(inside) == in_loops


def test_an_array_of_keys_or_a_reference_is_no_activation_to_wait_for() -> None:
    config = settings(prefetch_bytes=0)
    for name in ("keys_first", "mutable", "gradient_in_reference"):
        step, plan = trace_program(name, 3, config=config)
        new = gather_at_use(step, plan)
        tied = [
            v.aval
            for e in equations(new.jaxpr)
            if e.primitive.name == BARRIER
            for v in e.invars
        ]
        assert tied
        assert all(jnp.issubdtype(a.dtype, jnp.floating) for a in tied)
        assert all(isinstance(a, jax.core.ShapedArray) for a in tied)


def test_a_primitive_without_a_rule_sees_the_whole() -> None:
    step, plan = trace_program("unknown", 3)
    new = gather_at_use(step, plan)
    wholes = {v for e in gathers(new) for v in e.outvars}
    for name in ("sort", "cumsum"):
        (eqn,) = [e for e in equations(new.jaxpr) if e.primitive.name == name][:1]
        assert eqn.invars[0] in wholes


@pytest.mark.parametrize("name", ["unrolled", "scanned_half_remat"])
def test_the_user_s_own_axes_stay_split(name: str) -> None:
    mesh, base = grid_mesh(), PartitionSpec(None, "model")
    step, plan = trace_program(name, 3, mesh=mesh, base_spec=base)
    new = gather_at_use(step, plan)
    assert gathers(new)
    for eqn in gathers(new):
        assert tuple(eqn.params["sharding"].spec) == (None, "model")


@pytest.mark.parametrize("stage", [1, 3])
def test_a_tied_table_is_gathered_once_for_both_of_its_uses(stage: int) -> None:
    step, plan = trace_program("tied", stage)
    tables = [
        e for e in gathers(gather_at_use(step, plan)) if 32 in e.outvars[0].aval.shape
    ]
    assert len(tables) == 1  # the embedding, and the head that reads its transpose
    assert tables[0].outvars[0].aval.shape == (32, WIDTH)


def loss_of_jitted_blocks(params: Any, x: jax.Array) -> jax.Array:
    block = jax.jit(lambda w, h: jnp.tanh(h @ half(w)))
    h = half(x)
    for w in params.values():
        h = block(w, h)
    return h.astype(jnp.float32).mean()


def loss_of_branches(params: Any, x: jax.Array) -> jax.Array:
    h = half(x)
    for w in params.values():
        h = jax.lax.cond(
            h.sum() > 0,
            lambda w, h: jnp.tanh(h @ half(w)),
            lambda w, h: h @ half(w),
            *(w, h),
        )
    return h.astype(jnp.float32).mean()


@pytest.mark.parametrize("loss", [loss_of_jitted_blocks, loss_of_branches])
def test_forward_bodies_hand_no_copy_of_a_weight_to_backward(loss: Any) -> None:
    """What a body returns for backward is the array that was gathered for it."""
    params = {f"w{i}": jnp.ones((WIDTH, WIDTH)) for i in range(3)}
    args = (params, params, jnp.ones((32, WIDTH)))
    step, plan = trace_step(momentum(loss), args, 1)
    new = gather_at_use(step, plan)
    found = [str(e.outvars[0].aval.dtype) for e in gathers(new)]
    assert found == ["bfloat16"] * 3
    assert at_top(new, CONSTRAINT) == 3


def test_a_scan_without_remat_gathers_its_stack_once() -> None:
    def loss(params: Any, x: jax.Array) -> jax.Array:
        turn = lambda h, w: (jnp.tanh(h @ half(w)), None)  # noqa: E731
        h, _ = jax.lax.scan(turn, half(x), params["w"])
        return h.astype(jnp.float32).mean()

    args = [{"w": jnp.ones((LAYERS, WIDTH, WIDTH))}] * 2
    step, plan = trace_step(momentum(loss), (*args, jnp.ones((32, WIDTH))), 1)
    new = gather_at_use(step, plan)
    (gathered,) = gathers(new)
    loops = [e for e in inner(new.jaxpr).eqns if e.primitive.name in LOOP_NAMES]
    assert len(loops) == 2
    assert all(gathered.outvars[0] in e.invars for e in loops)


def test_an_optimizer_that_may_skip_gathers_no_update() -> None:
    """A branch of zeros agrees with a branch of shards, once it is placed."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return ((x @ params["w"]) ** 2).mean()

    def skipping(params: Any, slots: Any, x: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x)
        slots = jax.tree.map(lambda m, g: 0.9 * m + g, slots, grads)
        updates = jax.lax.cond(
            value > 0,
            lambda m: jax.tree.map(lambda m: 0.1 * m, m),
            lambda m: jax.tree.map(jnp.zeros_like, m),
            slots,
        )
        return jax.tree.map(jnp.subtract, params, updates), slots, value

    w = {"w": jnp.ones((WIDTH, WIDTH))}
    step, plan = trace_step(skipping, (w, w, jnp.ones((32, WIDTH))), 3)
    new = gather_at_use(reduce_at_birth(step, plan), plan)
    cond = next(e for e in inner(new.jaxpr).eqns if e.primitive.name == "cond")
    inside = [
        tuple(e.params["sharding"].spec)
        for body in bodies_of(cond)
        for e in equations(body.jaxpr)
        if e.primitive.name == CONSTRAINT
    ]
    assert inside == [("data", None)]  # the zeros; nothing is made whole
