from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from benchmarks.cases import CASES, Case, Limits
from benchmarks.figures import Figures, compile_case, main, misses, resident_bytes
from jzero.audit.facts import CollectiveFacts
from jzero.audit.memory import MemoryFacts
from jzero.audit.report import StepAudit
from jzero.audit.setup_aot import missing_wheels
from jzero.audit.shapes import read_shapes
from tests.gpt_model import batch_shapes, build_gpt, count_params

needs_compiler = pytest.mark.skipif(
    bool(missing_wheels()),
    reason="the GPU compiler is not installed: python -m jzero.audit.setup_aot",
)


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
    audit = StepAudit(
        name="step",
        num_devices=8,
        memory=MemoryFacts(
            argument_bytes=10**9,
            output_bytes=10**9,
            alias_bytes=10**9,
            temp_bytes=10**9,
        ),
        collectives=(reduced("bf16[1000,1000]"),),
    )
    settings: dict[str, Any] = {
        "audit": audit,
        "num_params": 10**6,
        "formula_bytes": 10**9,
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
    return figures(audit=dataclasses.replace(figures().audit, collectives=facts))


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
        (sends(reduced("f32[2048]", "all-gather")), FITS, ["f32 gather"]),
        (sends(reduced("bf16[2048]", "all-gather")), FITS, []),
        (sends(reduced("f32[4]", runs=1)), FITS, ["loops of unknown length"]),
    ],
)
def test_misses(found: Figures, limits: Limits, expected: list[str]) -> None:
    assert misses(found, 1, limits, 2**14) == expected


def test_all_reduces_are_right_at_stage_0() -> None:
    assert misses(sends(reduced("bf16[99999]", "all-reduce")), 0, FITS, 2**14) == []


@needs_compiler
def test_jzero_holds_what_the_formula_says() -> None:
    small = Case(pod="h100:1x8", num_layers=1, width=128, num_tokens=64)
    found = compile_case(small, 3)
    assert "resident" not in misses(found, 3, Limits(), 2**14)
    assert found.audit.num_devices == 8


@needs_compiler
def test_command_prints_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--pod", "h100:1x8", "--layers", "1", "--width", "128", "--tokens", "64"]
    status = main([*small, "--stage", "0", "--annotations", "--details", "2"])
    printed = capsys.readouterr().out
    assert status == 0
    assert "all-reduce of bf16[" in printed
    assert "1.00" in printed and "resident MB" in printed
