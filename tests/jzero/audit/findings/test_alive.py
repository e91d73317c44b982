from __future__ import annotations

import jax
import jax.numpy as jnp

import jzero
from jzero.audit.collectives import read_collectives
from jzero.audit.findings.alive import find_waiting, peak_waiting_bytes
from jzero.audit.hlo import Module, parse_module
from jzero.plan.plan import Plan

GROUPS = "replica_groups=[1,8]<=[8], to_apply=%sum"

# g1 is born, g2 is born, both end; g3 is born and ends; in the loop one of half.
TEXT = f"""HloModule m, num_partitions=8

%sum (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %ab = f32[] add(%a, %b)
}}

%body (c: f32[16384]) -> f32[16384] {{
  %c = f32[16384]{{0}} parameter(0)
  %g4 = f32[16384]{{0}} negate(%c)
  %r4 = f32[2048]{{0}} reduce-scatter(%g4), {GROUPS}
  ROOT %c4 = f32[16384]{{0}} copy(%c)
}}

%test (d: f32[16384]) -> pred[] {{
  %d = f32[16384]{{0}} parameter(0)
  ROOT %lt = pred[] is-finite(%d)
}}

ENTRY %main (x: f32[32768], y: f32[16384]) -> f32[4096] {{
  %x = f32[32768]{{0}} parameter(0)
  %y = f32[16384]{{0}} parameter(1)
  %g1 = f32[32768]{{0}} negate(%x)
  %g2 = f32[32768]{{0}} exponential(%x)
  %b2 = f32[32768]{{0}} bitcast(%g2)
  %r1 = f32[4096]{{0}} reduce-scatter(%g1), {GROUPS}
  %r2 = f32[32768]{{0}} all-reduce-start(%b2), {GROUPS}
  %g3 = f32[32768]{{0}} cosine(%x)
  %e2 = f32[32768]{{0}} all-reduce-done(%r2)
  %r3 = f32[4096]{{0}} reduce-scatter(%g3), {GROUPS}
  %w = f32[16384]{{0}} while(%y), condition=%test, body=%body
  %gather = f32[32768]{{0}} all-gather(%r1), replica_groups=[1,8]<=[8]
  ROOT %out = f32[4096]{{0}} add(%r1, %r3)
}}
"""
WHOLE = 32768 * 4


def peak(module: Module, min_bytes: int = 0) -> int:
    return peak_waiting_bytes(module, read_collectives(module), min_bytes=min_bytes)


def test_gradients_wait_from_their_birth_to_the_end_of_their_sum() -> None:
    """g1 and g2 wait together, then g2 (still being summed) and g3."""
    assert peak(parse_module(TEXT)) == 2 * WHOLE


def test_a_gradient_that_is_summed_at_birth_waits_alone() -> None:
    lines = TEXT.splitlines(keepends=True)
    late = next(line for line in lines if "%r1 =" in line)
    born = next(line for line in lines if "%g2 =" in line)
    rest = [line for line in lines if line != late]
    rest.insert(rest.index(born), late)
    done = next(line for line in rest if "%e2 =" in line)
    third = next(line for line in rest if "%g3 =" in line)
    rest.remove(done)
    rest.insert(rest.index(third), done)
    assert peak(parse_module("".join(rest))) == WHOLE


def test_what_is_still_being_summed_waits() -> None:
    """With r1 at g1's birth only g2 and g3 overlap: between r2 and its end."""
    lines = TEXT.splitlines(keepends=True)
    late = next(line for line in lines if "%r1 =" in line)
    lines.remove(late)
    lines.insert(lines.index(next(x for x in lines if "%g2 =" in x)), late)
    assert peak(parse_module("".join(lines))) == 2 * WHOLE


def test_small_ones_are_left_out() -> None:
    assert peak(parse_module(TEXT), min_bytes=WHOLE + 1) == 0


def test_each_loop_counts_for_itself() -> None:
    text = TEXT.replace("f32[32768]", "f32[64]").replace("f32[4096]", "f32[8]")
    assert peak(parse_module(text)) == 16384 * 4


def stacked() -> Plan:
    return plan(shape=(2, 64, 256), window_bytes=1000)


def plan(
    stage: int = 3, window_bytes: int = 0, shape: tuple[int, ...] = (128, 256)
) -> Plan:
    def train_step(state: dict[str, jax.Array], x: jax.Array):
        return {"w": state["w"] - x.mean()}, x.sum()

    step = jzero.shard_train_step(
        train_step,
        stage=stage,
        config=jzero.ZeroConfig(reduce_window_bytes=window_bytes),
    )
    state = {"w": jax.ShapeDtypeStruct(shape, jnp.float32)}
    return step.plan(state, jax.ShapeDtypeStruct((8, 2), jnp.float32))


def test_twice_the_window_and_the_largest_gradient_may_wait() -> None:
    module = parse_module(TEXT)
    facts = read_collectives(module)
    (found,) = find_waiting(module, facts, plan())
    assert found.kind == "gradient-alive"
    assert found.where == "ZeroConfig(reduce_window_bytes=0)"
    assert found.num_bytes == 2 * WHOLE - WHOLE
    assert f"{2 * WHOLE:,}" in found.detail and f"{WHOLE:,}" in found.detail
    (found,) = find_waiting(module, facts, plan(window_bytes=1000))
    assert found.num_bytes == WHOLE - 2000
    assert not list(find_waiting(module, facts, plan(window_bytes=WHOLE // 2)))


def test_a_layer_in_a_loop_has_a_window_of_its_own() -> None:
    """What waits within one turn is one layer's, however large it is."""
    whole = TEXT.replace("f32[32768]", "f32[64]").replace("f32[4096]", "f32[8]")
    # The weight w has two layers of 16384 elements.
    for trips, num_findings in ((2, 0), (3, 1)):
        turns = f'body=%body, backend_config={{"known_trip_count":{{"n":"{trips}"}}}}'
        module = parse_module(whole.replace("body=%body", turns))
        facts = read_collectives(module)
        assert peak_waiting_bytes(module, facts) == 16384 * 4
        assert len(list(find_waiting(module, facts, stacked()))) == num_findings


def test_stages_without_a_window_let_gradients_wait() -> None:
    module = parse_module(TEXT)
    assert not list(find_waiting(module, read_collectives(module), plan(stage=1)))
