"""Planted faults are found and named, and programs without any give no finding."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import get_args

import pytest

from benchmarks.findings import (
    PLANTED,
    PLATFORMS,
    Planted,
    Platform,
    compile_planted,
    find_planted,
    render_table,
)
from jzero.audit.findings.finding import FindingKind
from jzero.audit.step_report import StepReport
from tests.jzero.audit.findings.clean_programs import CLEAN, compile_gpt, report_of
from tests.needs import needs_compiler

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "findings.md"
ON_BOTH = [pytest.param("gpu", marks=needs_compiler), "cpu"]
# What a fault brings along: the transpose of a constraint is one, and resharding by
# hand also moves what it does not gather. `left-whole` names the moments, too.
SIDE_EFFECTS = {
    "wide-gather": {"large-all-reduce"},
    "full-rematerialization": {"activation-moved"},
}


def planted_of(kind: FindingKind) -> Planted:
    (planted,) = (p for p in PLANTED if p.kind == kind)
    return planted


@functools.cache
def compile_once(kind: FindingKind, platform: Platform) -> StepReport:
    return compile_planted(planted_of(kind), platform)


def test_one_fault_is_planted_for_every_kind() -> None:
    assert sorted(p.kind for p in PLANTED) == sorted(get_args(FindingKind))


@pytest.mark.parametrize("platform", ON_BOTH)
@pytest.mark.parametrize("kind", get_args(FindingKind))
def test_a_planted_fault_is_found(kind: FindingKind, platform: Platform) -> None:
    planted = planted_of(kind)
    report = compile_once(kind, platform)
    found = find_planted(planted, report.findings)
    if platform == "cpu" and not planted.on_cpu:
        assert found is None
    else:
        assert found is not None, [str(f) for f in report.findings]
        assert found.num_bytes == pytest.approx(
            planted.num_bytes * cpu_factor(planted, platform), rel=0.01
        )
        # The program's own text is a long one; the finding's is for a person.
        assert found.remedy and "None" not in str(found)
    others = {f.kind for f in report.findings} - {kind}
    assert others <= SIDE_EFFECTS.get(kind, set())


def cpu_factor(planted: Planted, platform: Platform) -> float:
    """XLA for CPUs moves 16-bit values in 32 bits."""
    if platform == "gpu":
        return 1
    if planted.kind in ("activation-moved", "full-rematerialization"):
        return 2
    if planted.kind == "gradient-alive":
        # Twelve of them and the largest double; the window does not.
        return (12 * 2**20 - 3 * 2**20) / planted.num_bytes
    return 1


@pytest.mark.parametrize("platform", ON_BOTH)
def test_every_finding_names_the_planted_weight(platform: Platform) -> None:
    """Weights of one shape, in one program, and no module names to tell them by."""
    kinds: tuple[FindingKind, ...] = ("large-all-reduce", "wide-gather")
    for kind in kinds:
        report = compile_once(kind, platform)
        assert {f.where for f in report.findings} <= {"state['params']['w1']"}


def test_moments_are_named_beside_their_parameter() -> None:
    report = compile_once("left-whole", "cpu")
    assert [f.where for f in report.findings] == [
        "state['opt'][0].mu['w1']",
        "state['opt'][0].nu['w1']",
        "state['params']['w1']",
    ]


@needs_compiler
def test_the_table_in_the_documents_is_what_is_found() -> None:
    found = {
        (planted.kind, platform): find_planted(
            planted, compile_once(planted.kind, platform).findings
        )
        for planted in PLANTED
        for platform in PLATFORMS
    }
    text = DOCUMENT.read_text()
    tables = re.findall(r"<!-- planted -->\n(.*)\n<!-- /planted -->", text, re.S)
    assert tables == [render_table(found)], "run python -m benchmarks.findings"


def check_clean(report: StepReport) -> None:
    assert [str(finding) for finding in report.findings] == []
    assert "Findings: none." in str(report)
    # There was something to look at: weights that are split, or sums of gradients.
    assert report.moved_bytes > 2**20


# For GPUs, tests/benchmarks/test_formula.py compiles it at every stage both ways.
@pytest.mark.parametrize(
    ("stage", "is_scanned"), [(0, True), (1, False), (2, True), (3, False), (3, True)]
)
def test_a_gpt_on_cpus_is_clean(stage: int, is_scanned: bool) -> None:
    check_clean(compile_gpt(stage, "cpu", is_scanned))


@pytest.mark.parametrize(
    ("platform", "stage"),
    [("cpu", 3), pytest.param("gpu", 2, marks=needs_compiler)],
)
def test_accumulation_in_a_scan_is_clean(platform: Platform, stage: int) -> None:
    report = compile_gpt(stage, platform, True, num_micro_batches=2)
    check_clean(report)
    assert report.plan.num_micro_batches == 2
    if platform == "gpu":
        # The formula counts each micro-batch.
        expected = report.traffic.moved_bytes
        assert report.moved_bytes == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("platform", "stage"),
    [pytest.param("gpu", 3, marks=needs_compiler), ("cpu", 1), ("cpu", 3)],
)
@pytest.mark.parametrize("name", CLEAN)
def test_other_models_are_clean(name: str, stage: int, platform: Platform) -> None:
    check_clean(report_of(CLEAN[name](), stage, platform))
