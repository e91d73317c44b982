"""Reports of compiled steps as one HTML page that needs nothing else.

Lives here: the page, its head and its findings. The style is `page/report.css`. May
import: `numbers` and its siblings `report_html_*`, which draw the rest. Read next:
`report_html_memory.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from jzero.audit.numbers import format_flops, format_seconds, format_share, format_size
from jzero.audit.report_html_memory import render_memory
from jzero.audit.report_html_tables import render_collectives
from jzero.audit.report_html_timeline import render_timeline

__all__ = ["label_records", "render_html"]

# Nothing is fetched even if a path were to slip through as markup.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_html(
    reports: Sequence[Mapping[str, Any]],
    *,
    title: str = "jzero: what the compiled step holds and sends",
    hbm_bytes: int | None = None,
) -> str:
    """Writes reports as one page, to look at and to send on.

    Args:
        reports: Records of `StepReport.to_dict`, one or more; several are drawn on
            common scales, such as the stages of one program.
        title: Of the page.
        hbm_bytes: Memory of one device in bytes, drawn as a line; None if unknown.

    Returns:
        HTML with its style and pictures inside, without scripts.

    Raises:
        ValueError: There is no report.

    Example:
        `Path("report.html").write_text(render_html([report.to_dict()]))`
    """
    if not reports:
        raise ValueError("There is no report to show: pass at least one record.")
    labels = label_records(reports)
    style = files("jzero.audit").joinpath("page/report.css").read_text("utf-8")
    body = (
        _head(reports, title),
        _findings(reports, labels),
        _overview(reports, labels),
        render_memory(reports, labels, hbm_bytes=hbm_bytes),
        render_timeline(reports, labels),
        *map(render_collectives, reports, labels),
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style></head>\n"
        f"<body><main>\n{chr(10).join(body)}\n</main></body></html>\n"
    )


def label_records(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names each record by what tells it from the others.

    Returns:
        Its stage; with its program and its mesh where these differ; with a number
        where nothing does.
    """
    names = [[f"stage {record['stage']}"] for record in reports]
    for tell in (lambda r: r["name"], _mesh):
        told = [tell(record) for record in reports]
        if len(set(told)) > 1:
            names = [[*name, text] for name, text in zip(names, told, strict=True)]
    labels = [", ".join(name) for name in names]
    seen: dict[str, int] = {}
    numbered: list[str] = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        several = labels.count(label) > 1
        numbered.append(f"{label}, no. {seen[label]}" if several else label)
    return numbered


def _mesh(record: Mapping[str, Any]) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in record["axis_sizes"].items())


def _head(reports: Sequence[Mapping[str, Any]], title: str) -> str:
    def each(texts: Sequence[str]) -> str:
        return escape("; ".join(dict.fromkeys(texts)))

    stages = [str(record["stage"]) for record in reports]
    facts = {
        "program": each([record["name"] for record in reports]),
        "stage" if len(set(stages)) == 1 else "stages": ", ".join(
            dict.fromkeys(stages)
        ),
        "mesh": each([_mesh(record) for record in reports]),
        "devices": each([str(record["num_devices"]) for record in reports]),
        "platform": each([record["platform"] for record in reports]),
    }
    listed = "".join(
        f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items()
    )
    said = dict.fromkeys(record["ran_on"] for record in reports if record["ran_on"])
    sentences = "".join(
        f'<p class="lead">{_ended(text[:1].upper() + text[1:])}</p>' for text in said
    )
    return f"<header><h1>{escape(title)}</h1><dl>{listed}</dl>{sentences}</header>"


def _ended(text: str) -> str:
    """Escapes a sentence and ends it; it may begin with code, so its case stays."""
    return escape(text if text.endswith((".", "!", "?")) else f"{text}.")


def _findings(reports: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> str:
    found = [
        (finding, label)
        for record, label in zip(reports, labels, strict=True)
        for finding in record["findings"]
    ]
    if not found:
        return (
            '<p class="no-findings">No findings: the compiled program does what the '
            "plan asked for.</p>"
        )
    found.sort(key=lambda pair: -pair[0]["num_bytes"])
    items = "".join(
        _finding(finding, label if len(reports) > 1 else "") for finding, label in found
    )
    count = "1 finding" if len(found) == 1 else f"{len(found)} findings, worst first"
    return (
        f'<section class="findings"><h2>{count}</h2>'
        "<p>What the compiled program does and the plan did not ask for.</p>"
        f"<ol>{items}</ol></section>"
    )


def _finding(finding: Mapping[str, Any], label: str) -> str:
    num_bytes = finding["num_bytes"]
    size = f'<span class="size">{format_size(num_bytes)}</span>' if num_bytes else ""
    of = f'<span class="of">{escape(label)}</span>' if label else ""
    return (
        f'<li><div class="what"><strong>{escape(finding["kind"])}</strong>{size}{of}'
        f"<code>{escape(finding['where'])}</code></div>"
        f'<p class="detail">{_ended(finding["detail"])}</p>'
        f'<p class="remedy"><b>Remedy:</b> {_ended(finding["remedy"])}</p></li>'
    )


def _overview(reports: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> str:
    heads = (
        "at rest",
        "peak",
        "sent per step",
        "of it not hidden",
        "step, estimated",
        "arithmetic",
        "findings",
    )
    rows: list[str] = []
    for record, label in zip(reports, labels, strict=True):
        memory, estimate = record["memory"], record["estimate"]
        exposed, moved = record["exposed_bytes"], record["moved_bytes"]
        cells = (
            format_size(memory["argument_bytes"]),
            format_size(memory["device_peak_bytes"]),
            format_size(moved),
            format_share(exposed, moved) or "0 %",
            format_seconds(estimate["seconds"]),
            format_flops(record["flops"]),
            str(len(record["findings"])),
        )
        listed = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        rows.append(f'<tr><th scope="row">{escape(label)}</th>{listed}</tr>')
    columns = "".join(f'<th scope="col">{head}</th>' for head in heads)
    one = " one" if len(reports) == 1 else ""
    return (
        f'<section class="overview"><h2>Per device</h2><div class="scroll">'
        f'<table class="overview{one}">'
        f"<thead><tr><td></td>{columns}</tr></thead><tbody>{''.join(rows)}</tbody>"
        "</table></div></section>"
    )
