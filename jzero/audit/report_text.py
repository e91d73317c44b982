"""How a report is shown as text.

Lives here: presentation with rich, no decision. May import: plan, its sibling
`findings.finding`, and `step_report` for types alone. Read next: `report_html.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jzero.audit.findings.finding import KINDS
from jzero.audit.formula import Traffic
from jzero.audit.numbers import format_flops, format_size
from jzero.plan.host import DEVICE
from jzero.plan.table import plain_text

if TYPE_CHECKING:
    from jzero.audit.step_report import StepReport

__all__ = ["build_report", "render_report"]

_WIDTH_CHARS = 120
_MAX_COLLECTIVES = 12
_LEAF_CHARS = 44


def render_report(report: StepReport) -> str:
    """Writes a report as plain text without colour codes."""
    return plain_text(build_report(report), _WIDTH_CHARS)


def build_report(report: StepReport) -> RenderableType:
    """Builds what rich shows of a report."""
    parts: list[RenderableType] = [_head(report), _memory(report), _traffic(report)]
    if report.collectives:
        parts += [_collectives(report), *_doubts(report)]
    parts += [_estimate(report), _findings(report)]
    return Group(*parts)


def _head(report: StepReport) -> Text:
    axes = ", ".join(f"{axis}={size}" for axis, size in report.plan.axis_sizes)
    text = Text(f"{report.name}: stage {report.plan.stage} on {axes}", style="bold")
    text.append(f"\n{report.ran_on}", style="not bold")
    return text


def _table(title: str, first: str, *rest: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column(first)
    for heading in rest:
        table.add_column(heading, justify="right")
    return table


def _memory(report: StepReport) -> Table:
    memory = report.memory
    table = _table("memory of one device", "", "leaves", "planned", "compiled")
    for row in report.resident:
        table.add_row(
            row.role if row.memory_kind == DEVICE else f"{row.role}, in host memory",
            str(row.num_leaves),
            format_size(row.planned_bytes),
            format_size(row.compiled_bytes),
        )
    table.add_row("temporaries", "", "", format_size(memory.temp_bytes))
    fresh_bytes = memory.output_bytes - memory.alias_bytes
    table.add_row("results in new buffers", "", "", format_size(fresh_bytes))
    table.add_section()
    table.add_row(
        "device peak", "", "", Text(format_size(memory.device_peak_bytes), style="bold")
    )
    if memory.host_peak_bytes:
        table.add_row("host peak", "", "", format_size(memory.host_peak_bytes))
    link = report.host_traffic
    if link.to_device_bytes or link.to_host_bytes:
        for label, num_bytes in (
            ("copied in from the host, per step", link.to_device_bytes),
            ("copied back to the host, per step", link.to_host_bytes),
        ):
            table.add_row(label, "", "", format_size(num_bytes))
    waiting = format_size(report.waiting_gradient_bytes)
    table.add_row("whole gradients waiting, at most", "", "", waiting)
    if report.lost_donation_bytes:
        lost = format_size(report.lost_donation_bytes)
        table.add_row("donated and not reused", "", "", lost)
    return table


def _traffic(report: StepReport) -> Table:
    table = _table(
        f"sent by one device per step (formula for {_formula_of(report)})",
        "collective",
        "formula",
        "compiled",
        "ratio",
        "runs",
        "not hidden",
    )
    sums: dict[str, list[int]] = {}
    for row in report.collectives:
        entry = sums.setdefault(row.facts.kind, [0, 0, 0])
        entry[0] += row.facts.step_moved_bytes
        entry[1] += row.facts.runs
        entry[2] += row.exposed_bytes
    formula = _formula_rows(report.traffic)
    for kind in dict.fromkeys((*formula, *sums)):
        moved, runs, exposed = sums.get(kind, (0, 0, 0))
        expected = formula.get(kind, 0)
        if not moved and not expected:
            continue
        table.add_row(
            kind,
            format_size(expected),
            format_size(moved),
            f"{moved / expected:.3f}" if expected else "",
            str(runs),
            format_size(exposed),
        )
    table.add_section()
    expected = report.traffic.moved_bytes
    table.add_row(
        "all",
        format_size(expected),
        format_size(report.moved_bytes),
        f"{report.moved_bytes / expected:.3f}" if expected else "",
        "",
        format_size(report.exposed_bytes),
    )
    return table


def _formula_of(report: StepReport) -> str:
    num = report.plan.num_micro_batches
    bits = f"{8 * report.elem_bytes} bits"
    return bits if num == 1 else f"{bits} and {num} micro-batches"


def _formula_rows(traffic: Traffic) -> dict[str, int]:
    return {
        "all-gather": traffic.all_gather_bytes,
        "reduce-scatter": traffic.reduce_scatter_bytes,
        "all-reduce": traffic.all_reduce_bytes,
    }


def _collectives(report: StepReport) -> Table:
    table = _table("largest collectives", "collective", "runs", "group", "sent")
    table.add_column("not hidden", justify="right")
    table.add_column("of", overflow="ellipsis", no_wrap=True, max_width=_LEAF_CHARS)
    table.add_column("source", overflow="fold")
    ranked = sorted(report.collectives, key=lambda c: -c.facts.step_moved_bytes)
    for row in ranked[:_MAX_COLLECTIVES]:
        fact = row.facts
        first = row.leaves[0] if row.leaves else ""
        more = f" +{len(row.leaves) - 1}" if len(row.leaves) > 1 else ""
        source = (fact.source or "").rpartition("/")[2]
        table.add_row(
            f"{fact.kind} {fact.dtype}",
            f"{fact.runs}{'' if fact.is_runs_known else '?'}",
            f"{fact.num_groups}x{fact.group_size}",
            format_size(fact.step_moved_bytes),
            format_size(row.exposed_bytes),
            first[: _LEAF_CHARS - len(more)] + more,
            source,
        )
    if len(ranked) > _MAX_COLLECTIVES:
        rest = sum(c.facts.step_moved_bytes for c in ranked[_MAX_COLLECTIVES:])
        num_rest = len(ranked) - _MAX_COLLECTIVES
        table.add_row(f"{num_rest} more", "", "", format_size(rest))
    return table


def _doubts(report: StepReport) -> list[Text]:
    """What the counts of collectives cannot be sure of, if there is anything."""
    facts = [row.facts for row in report.collectives]
    num_unknown = sum(not fact.is_runs_known for fact in facts)
    doubts: list[str] = []
    if num_unknown:
        doubts.append(
            f"Marked ?: {num_unknown} in loops of unknown length, counted once."
        )
    if any(fact.is_conditional for fact in facts):
        doubts.append("Collectives in branches count as if every branch is taken.")
    return [Text(" ".join(doubts))] if doubts else []


def _estimate(report: StepReport) -> Text:
    timeline = report.timeline
    speeds = "nominal speeds"
    if report.speeds_of != "unknown":
        speeds = f"the stated speeds of {report.speeds_of}"
    return Text(
        f"{format_flops(report.flops)} per device and step. Estimate, not a "
        f"measurement, by the compiler's schedule and {speeds}: "
        f"{timeline.seconds * 1e3:.3g} ms, of which the network is not hidden for "
        f"{timeline.exposed_seconds * 1e3:.3g} ms.",
    )


def _findings(report: StepReport) -> RenderableType:
    if not report.findings:
        return Text("Findings: none.", style="green")
    count = len(report.findings)
    table = Table(
        title="1 finding" if count == 1 else f"{count} findings, worst first",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        title_style="bold red",
    )
    for heading in ("what", "where", "bytes", "numbers and remedy"):
        table.add_column(heading, overflow="fold")
    for finding in report.findings:
        table.add_row(
            f"{finding.kind}: {KINDS[finding.kind]}",
            finding.where,
            format_size(finding.num_bytes) if finding.num_bytes else "",
            f"{finding.detail}. Remedy: {finding.remedy}.",
        )
    return table
