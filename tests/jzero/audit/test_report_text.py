"""What a person reads: numbers with units, against the formula, and the remedies."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

from rich.console import Console

from benchmarks.findings import PLANTED, compile_planted
from jzero.audit.numbers import format_size
from jzero.audit.report_text import build_report, render_report
from jzero.audit.step_report import StepReport
from tests.needs import needs_compiler


@functools.cache
def report_of(kind: str, platform: str = "cpu") -> StepReport:
    (planted,) = (p for p in PLANTED if p.kind == kind)
    return compile_planted(planted, "gpu" if platform == "gpu" else "cpu")


def row_of(text: str, first: str) -> list[str]:
    """The cells of the row that begins with some words."""
    (line,) = (x for x in text.splitlines() if re.match(rf"\s*{first}  ", x))
    return re.split(r"\s{2,}", line.strip())


def test_memory_is_told_by_role() -> None:
    report = report_of("donation-lost")
    text = render_report(report)
    assert "stage 3 on data=8" in text.splitlines()[0]
    for row in report.resident:
        assert row_of(text, row.role) == [
            row.role,
            str(row.num_leaves),
            format_size(row.planned_bytes),
            format_size(row.compiled_bytes),
        ]
    memory = report.memory
    assert row_of(text, "temporaries")[-1] == format_size(memory.temp_bytes)
    assert row_of(text, "device peak")[-1] == format_size(memory.device_peak_bytes)
    assert row_of(text, "donated and not reused")[-1] == "32.8 kB"
    waiting = row_of(text, "whole gradients waiting, at most")[-1]
    assert waiting == format_size(report.waiting_gradient_bytes)


def test_traffic_is_told_against_the_formula() -> None:
    report = report_of("donation-lost")
    text = render_report(report)
    ratio = report.moved_bytes / report.traffic.moved_bytes
    assert row_of(text, "all") == [
        "all",
        format_size(report.traffic.moved_bytes),
        format_size(report.moved_bytes),
        f"{ratio:.3f}",
        format_size(report.exposed_bytes),
    ]
    kind, formula, compiled, ratio_text, *_ = row_of(text, "all-gather")
    assert formula == format_size(report.traffic.all_gather_bytes)
    gathered = sum(
        c.facts.step_moved_bytes
        for c in report.collectives
        if c.facts.kind == "all-gather"
    )
    assert (kind, compiled) == ("all-gather", format_size(gathered))
    expected = gathered / report.traffic.all_gather_bytes
    assert ratio_text == f"{expected:.3f}"
    assert "(formula for 32 bits)" in text


def test_the_largest_collectives_come_first_with_leaf_and_source() -> None:
    text = render_report(report_of("donation-lost"))
    table = text[text.index("largest collectives") :]
    assert "state['params']['w" in table
    assert re.search(r"findings\.py:\d+", table)
    assert "1x8" in table


def test_the_text_admits_what_it_cannot_tell() -> None:
    report = report_of("donation-lost")
    text = render_report(report)
    assert "unknown length" not in text and "branch" not in text
    first, *rest = report.collectives
    facts = replace(first.facts, is_runs_known=False, is_conditional=True)
    doubtful = replace(
        report,
        collectives=(replace(first, facts=facts), *rest),
        plan=replace(report.plan, num_micro_batches=4),
    )
    text = " ".join(render_report(doubtful).split())
    assert "Marked ?: 1 in loops of unknown length, counted once." in text
    assert "count as if every branch is taken" in text
    assert "(formula for 32 bits and 4 micro-batches)" in text


def test_findings_stand_with_numbers_and_remedy() -> None:
    text = " ".join(render_report(report_of("donation-lost")).split())
    assert "1 finding " in text
    for words in ("donation-lost", "state['total']", "32,768", "Remedy: make the new"):
        assert words in text
    clean = render_report(report_of("large-all-reduce"))  # not visible on CPUs
    assert "Findings: none." in clean


def test_several_findings_come_worst_first() -> None:
    report = report_of("left-whole")
    text = render_report(report)
    assert "3 findings, worst first" in text
    sizes = [finding.num_bytes for finding in report.findings]
    assert sizes == sorted(sizes, reverse=True)
    table = text[text.index("3 findings") :]
    assert table.count("1.04 MB") == 3


def test_times_are_called_an_estimate() -> None:
    text = " ".join(render_report(report_of("donation-lost")).split())
    assert "Estimate, not a measurement" in text
    assert "nominal speeds" in text
    assert re.search(r"[\d.]+ ms, of which the network is not hidden for", text)


@needs_compiler
def test_devices_that_are_not_there_are_said_not_to_be() -> None:
    text = " ".join(render_report(report_of("donation-lost", "gpu")).split())
    assert "not here: nothing ran" in text
    assert "the stated speeds of NVIDIA H100" in text
    assert "reduce-scatter" in text


def test_plain_text_fits_a_screen_and_colours_are_for_rich() -> None:
    report = report_of("donation-lost")
    text = str(report)
    assert text == render_report(report)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 120
    console = Console(width=120, force_terminal=True, color_system="truecolor")
    with console.capture() as capture:
        console.print(build_report(report))
        console.print(report)
    assert capture.get().count("device peak") == 2
    assert "\x1b[" in capture.get()
