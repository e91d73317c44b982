"""Collectives in hand-written programs, whose bytes can be counted by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

import jzero
from jzero.audit.collectives import read_collectives
from jzero.audit.findings.finding import Finding
from jzero.audit.findings.moved import find_moved
from jzero.audit.hlo import parse_module
from jzero.plan.plan import Plan

# The state: u and w, f32[64,512] in rows of 8. As bfloat16 one is 64 KiB.
NUM_ELEMS = 64 * 512


def plan_of(
    stage: int = 3, axes: dict[str, int] | None = None, **settings: Any
) -> Plan:
    def train_step(state: Any, x: jax.Array):
        return jax.tree.map(lambda w: w - x.mean(), state), x.sum()

    axes = axes or {"data": 8}
    shape = tuple(axes.values())
    mesh = Mesh(
        np.array(jax.devices()).reshape(shape),
        tuple(axes),
        axis_types=(AxisType.Auto,) * len(axes),
    )
    step = jzero.shard_train_step(
        train_step, stage=stage, mesh=mesh, config=jzero.ZeroConfig(**settings)
    )
    state = {name: jax.ShapeDtypeStruct((64, 512), jnp.float32) for name in "uw"}
    return step.plan(state, jax.ShapeDtypeStruct((8, 2), jnp.float32))


def find(lines: str, platform: str = "gpu", plan: Plan | None = None) -> list[Finding]:
    """Finds what is wrong with the lines of an entry computation."""
    plan = plan or plan_of()
    text = f"""HloModule m, num_partitions=8

%own (p: f32[64,512], i: s32[]) -> f32[64,64] {{
  %p = f32[64,512]{{1,0}} parameter(0)
  %i = s32[] parameter(1)
  %z = s32[] constant(0)
  ROOT %ds = f32[64,64]{{1,0}} dynamic-slice(%p, %z, %i), dynamic_slice_sizes={{64,64}}
}}

ENTRY %main (u: f32[64,64], w: f32[64,64], x: f32[64,512]) -> f32[] {{
  %u = f32[64,64]{{1,0}} parameter(0), metadata={{op_name="lists[0][0]"}}
  %w = f32[64,64]{{1,0}} parameter(1), metadata={{op_name="lists[0][1]"}}
  %x = f32[64,512]{{1,0}} parameter(2), metadata={{op_name="lists[1][0]"}}
  %id = u32[] partition-id()
  %i = s32[] convert(%id)
{lines}
  ROOT %end = f32[] constant(0)
}}
"""
    module = parse_module(text)
    leaves = {(0, k): leaf for k, leaf in enumerate(plan.state)}
    facts = read_collectives(module)
    return list(find_moved(module, facts, plan, leaves, platform))


GROUPS = "replica_groups=[1,8]<=[8]"
SUMMED = f"""  %g = f32[64,512]{{1,0}} all-reduce(%x), {GROUPS}, to_apply=%s
  %o = f32[64,64]{{1,0}} fusion(%g, %i), kind=kLoop, calls=%own
  %n = f32[64,64]{{1,0}} subtract(%w, %o)
"""


@pytest.mark.parametrize("stage", [2, 3])
def test_a_gradient_that_is_summed_whole(stage: int) -> None:
    (found,) = find(SUMMED, plan=plan_of(stage))
    assert (found.kind, found.where) == ("large-all-reduce", "state['w']")
    assert found.num_bytes == 2 * NUM_ELEMS * 4 * 7 // 8
    assert "f32[64,512]" in found.detail and "once a step" in found.detail


def test_sums_that_are_no_fault() -> None:
    assert find(SUMMED, plan=plan_of(0)) == []  # as planned
    assert find(SUMMED, "cpu") == []  # it can do no better
    assert find(SUMMED, plan=plan_of(persistence_threshold=NUM_ELEMS + 1)) == []


def test_a_sum_that_a_cpu_reads_whole() -> None:
    (found,) = find(SUMMED + "  %a = f32[64,512]{1,0} abs(%g)\n", "cpu")
    assert found.kind == "large-all-reduce"


NAME = 'metadata={op_name="jvp(jzero.gather/jzero.leaf1)/optimization_barrier"}'
WIDE = f"""  %g = f32[64,512]{{1,0}} all-gather(%w), {GROUPS}, dimensions={{1}}, {NAME}
  %c = bf16[64,512]{{1,0}} convert(%g)
  %a = bf16[64,512]{{1,0}} abs(%c)
"""


def test_a_gather_in_32_bits_of_what_is_used_in_16() -> None:
    (found,) = find(WIDE)
    assert (found.kind, found.where) == ("wide-gather", "state['w']")
    assert found.num_bytes == NUM_ELEMS * 2 * 7 // 8


def test_gathers_in_32_bits_that_are_no_fault() -> None:
    assert find(WIDE, "cpu") == []  # it can do no better
    assert find(WIDE, plan=plan_of(gather_dtype="param")) == []  # as wished
    assert find(WIDE + "  %b = f32[64,512]{1,0} abs(%g)\n") == []  # used in 32


EXCHANGED = (
    f"  %g = f32[64,512]{{1,0}} all-to-all(%x), {GROUPS}, dimensions={{0}}, "
    'metadata={op_name="jvp(Model)/transpose"}\n'
)


def test_an_activation_that_is_exchanged() -> None:
    for plan in (plan_of(), plan_of(0)):
        (found,) = find(EXCHANGED, plan=plan)
        assert (found.kind, found.where) == ("activation-moved", "jvp(Model)/transpose")
        assert found.num_bytes == NUM_ELEMS * 4 * 7 // 8


def test_exchanges_that_are_no_fault() -> None:
    assert find(EXCHANGED.replace("Model", "shard_map")) == []  # by hand
    small = EXCHANGED.replace("(%x)", "(%w)").replace("f32[64,512]", "f32[64,64]")
    assert find(small) == []
    tensor = EXCHANGED.replace("[1,8]<=[8]", "[4,2]<=[8]")
    assert find(tensor, plan=plan_of(axes={"data": 4, "tensor": 2})) == []
    assert len(find(tensor, plan=plan_of(axes={"data": 8}))) == 1


CUT = f"""  %o = f32[64,64]{{1,0}} fusion(%x, %i), kind=kLoop, calls=%own
  %g = f32[64,512]{{1,0}} all-gather(%o), {GROUPS}, dimensions={{1}}
  %d = f32[8,512]{{1,0}} dynamic-slice(%g, %i, %i), dynamic_slice_sizes={{8,512}}
"""


@pytest.mark.parametrize("platform", ["gpu", "cpu"])
def test_an_array_that_is_gathered_to_be_cut_up(platform: str) -> None:
    (found,) = find(CUT, platform)
    assert (found.kind, found.where) == ("full-rematerialization", "g")
    assert found.num_bytes == NUM_ELEMS * 4 * 7 // 8
    # With a cast in between, as XLA for CPUs has it.
    cast = CUT.replace("slice(%g", "slice(%c").replace("f32[8,512]", "bf16[8,512]")
    cast = cast.replace("  %d", "  %c = bf16[64,512]{1,0} convert(%g)\n  %d")
    assert [f.kind for f in find(cast, platform)] == ["full-rematerialization"]
    (found,) = find(CUT + "  %a = f32[64,512]{1,0} abs(%g)\n", platform)
    assert found.kind == "activation-moved"


# A compiler joins the gather of a weight and that of an activation of equal shape.
JOINED = f"""  %o = f32[64,64]{{1,0}} fusion(%x, %i), kind=kLoop, calls=%own
  %s = ((f32[64,64], f32[64,64]), (f32[64,512], f32[64,512])) \
all-gather-start(%o, %w), {GROUPS}, dimensions={{1}}, \
metadata={{op_name="(jvp()/reshape:jvp(jzero.gather/jzero.leaf1)/optimization_barrier)"}}
  %e = (f32[64,512], f32[64,512]) all-gather-done(%s)
  %e0 = f32[64,512]{{1,0}} get-tuple-element(%e), index=0, \
metadata={{op_name="jvp()/reshape"}}
  %e1 = f32[64,512]{{1,0}} get-tuple-element(%e), index=1, {NAME}
  %c1 = bf16[64,512]{{1,0}} convert(%e1)
  %a1 = bf16[64,512]{{1,0}} abs(%c1)
  %a0 = f32[64,512]{{1,0}} abs(%e0)
"""


def test_an_activation_that_is_gathered_along_with_a_weight() -> None:
    wide, moved = find(JOINED)
    assert (wide.kind, wide.where) == ("wide-gather", "state['w']")
    assert wide.num_bytes == NUM_ELEMS * 2 * 7 // 8
    assert (moved.kind, moved.where) == ("activation-moved", "jvp()/reshape")
    assert moved.num_bytes == NUM_ELEMS * 4 * 7 // 8
