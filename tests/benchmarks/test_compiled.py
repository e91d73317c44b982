from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from benchmarks.cases import CASES, Case, Limits
from benchmarks.compiled import (
    Figures,
    carried_leaves,
    compile_case,
    layer_growth_mb,
    misses,
    resident_bytes,
)
from jzero.audit.facts import CollectiveFacts
from jzero.audit.memory import MemoryFacts
from jzero.audit.shapes import read_shapes
from tests.gpt_model import batch_shapes, build_gpt, count_params
from tests.needs import needs_compiler


def test_leaves_that_do_not_divide_stay_whole() -> None:
    odd = jax.ShapeDtypeStruct((300, 400), jnp.float32)
    even = jax.ShapeDtypeStruct((300, 512), jnp.float32)
    num_bytes = resident_bytes([odd, even], [], 3, 64, 2**14)
    assert num_bytes == 300 * 400 * 4 + 300 * 8 * 4


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_resident_bytes_are_twelve_per_parameter(stage: int) -> None:
    state = build_gpt(width=256, num_layers=2).state_shapes()
    num_bytes = resident_bytes(state, batch_shapes(16, 128), stage, 8, 2**14)
    expected = 12 * count_params(state) / (1 if stage == 0 else 8)
    assert num_bytes == pytest.approx(expected, rel=0.01)


def test_cases_name_each_stage_once() -> None:
    for case in CASES.values():
        stages = [stage for stage, _ in case.stages]
        assert stages == sorted(set(stages)) and stages


def figures(**changes: Any) -> Figures:
    """Figures of a step that misses nothing."""
    settings: dict[str, Any] = {
        "num_devices": 8,
        "memory": MemoryFacts(
            argument_bytes=10**9,
            output_bytes=10**9,
            alias_bytes=10**9,
            temp_bytes=10**9,
        ),
        "collectives": (reduced("bf16[1000,1000]"),),
        "num_params": 10**6,
        "formula_bytes": 10**9,
        "norm_elems": 20_000,
        "whole_elems": frozenset({30_000}),
        "carried": (),
        "lower_seconds": 1.0,
        "compile_seconds": 2.0,
        "compiled": None,
    }
    return Figures(**settings | changes)


def reduced(text: str, kind: Any = "reduce-scatter", runs: int = 2) -> CollectiveFacts:
    shapes = read_shapes(text)
    return CollectiveFacts(
        kind=kind,
        dtype=shapes[0].dtype,
        operands=shapes,
        parts=shapes,
        operand_bytes=shapes[0].num_bytes,
        moved_bytes=shapes[0].num_bytes * 7 // 8,
        runs=runs,
        is_runs_known=runs == 2,
        is_conditional=False,
        group_size=8,
        num_groups=1,
        is_async=False,
        op_name="",
        source=None,
        name="x",
    )


def sends(*facts: CollectiveFacts) -> Figures:
    return figures(collectives=facts)


FITS = Limits(peak_mb=2000, units=1.0, seconds=3)


@pytest.mark.parametrize(
    ("found", "limits", "expected"),
    [
        (figures(), FITS, []),
        (figures(), Limits(peak_mb=1999), ["peak > 1999"]),
        (figures(), Limits(units=0.99), ["moved > 0.99"]),
        (figures(), Limits(seconds=2.9), ["seconds > 2.9"]),
        (figures(formula_bytes=980_000_000), FITS, ["resident"]),
        (figures(formula_bytes=1_020_000_000), FITS, ["resident"]),
        (sends(reduced("bf16[16384]", "all-reduce")), FITS, ["large all-reduce"]),
        (sends(reduced("bf16[16383]", "all-reduce")), FITS, []),
        (sends(reduced("(bf16[9], bf16[30000])", "all-reduce")), FITS, []),
        (
            sends(reduced("(bf16[30000], bf16[30001])", "all-reduce")),
            FITS,
            ["large all-reduce"],
        ),
        (sends(reduced("f32[2501]", "all-gather")), FITS, ["f32 gather"]),
        (sends(reduced("f32[2500]", "all-gather")), FITS, []),
        (sends(reduced("bf16[2048]", "all-gather")), FITS, []),
        (figures(carried=("f32[8,8]",)), FITS, ["whole accumulator"]),
        (sends(reduced("f32[4]", runs=1)), FITS, ["loops of unknown length"]),
    ],
)
def test_misses(found: Figures, limits: Limits, expected: list[str]) -> None:
    assert misses(found, 2, limits, 2**14) == expected


def test_what_the_lower_stages_may_do() -> None:
    assert misses(sends(reduced("bf16[99999]", "all-reduce")), 0, FITS, 2**14) == []
    assert misses(figures(carried=("f32[8,8]",)), 1, FITS, 2**14) == []


@pytest.mark.parametrize("axis", [None, "data"])
def test_accumulators_that_a_loop_carries(axis: str | None) -> None:
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec(None, axis))

    def accumulate(x: jax.Array) -> jax.Array:
        def add(total: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
            total = total + jnp.sin(row[:, None] * row[None, :])
            return jax.lax.with_sharding_constraint(total, sharding), None

        zeros = jax.lax.with_sharding_constraint(jnp.zeros((64, 64)), sharding)
        return jax.lax.scan(add, zeros, x)[0]

    text = jax.jit(accumulate).lower(jnp.ones((5, 64))).compile().as_text()
    found = carried_leaves(text, [(64, 64)])
    assert found == (("f32[64,64]",) if axis is None else ())


def test_growth_per_layer_needs_both_cases() -> None:
    peaks_mb = {("unroll12", 3): 500.0, ("unroll24", 3): 596.0, ("unroll12", 1): 1.0}
    assert layer_growth_mb(peaks_mb) == 8.0
    assert layer_growth_mb({("unroll12", 3): 500.0, ("unroll24", 1): 596.0}) is None


@needs_compiler
def test_jzero_holds_what_the_formula_says() -> None:
    small = Case(pod="h100:1x8", num_layers=1, width=128, num_tokens=64)
    found = compile_case(small, 3)
    assert "resident" not in misses(found, 3, Limits(), 2**14)
    assert found.num_devices == 8
