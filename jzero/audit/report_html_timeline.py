"""The estimated schedule of one step as a picture: compute above, network below.

Lives here: the SVG of it and its legend. May import: `numbers`, `report_html_bars`.
Read next: `report_html_tables.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from jzero.audit.numbers import (
    axis_ticks,
    format_flops,
    format_seconds,
    format_share,
    format_size,
)
from jzero.audit.report_html_bars import Bar, merge_bars, subtract

__all__ = ["render_timeline"]

_PHASES = ("forward", "backward", "update")
_KINDS = ("all-gather", "reduce-scatter", "all-reduce")
_LANES = {"compute": 6, "network": 42}
_LANE_PX = 30
_EXPOSED_Y, _AXIS_Y, _HEIGHT = 77, 86, 112
_LEFT_PX, _WIDTH_PX, _RIGHT_PX = 76, 980, 14
_DRAWN_PX = _WIDTH_PX - _LEFT_PX - _RIGHT_PX
_CHAR_PX = 6.2


def render_timeline(records: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> str:
    """Draws the schedules of all records on a common axis.

    Args:
        records: As `StepReport.to_dict` returns them.
        labels: A short name for each.

    Returns:
        A section of HTML.
    """
    # A plain axis end of 0 would divide by it where no step does anything.
    end = max(record["estimate"]["seconds"] for record in records) or 1e-3
    figures = [
        _figure(record, label, end)
        for record, label in zip(records, labels, strict=True)
    ]
    return (
        '<section class="timeline"><h2>One step over time <small>an estimate, '
        f"nothing was timed</small></h2>{_explain(records)}{_legend(records)}"
        f"{''.join(figures)}</section>"
    )


def _explain(records: Sequence[Mapping[str, Any]]) -> str:
    said: dict[str, None] = {}
    for record in records:
        estimate = record["estimate"]
        speeds, device = estimate["speeds"], estimate["speeds_of"]
        of = "nominal speeds" if device == "unknown" else f"the speeds of {device}"
        said[
            f"The compiler's schedule, played at {of}: "
            f"{format_flops(speeds['flops_per_second'])}/s, memory "
            f"{format_size(speeds['memory_bytes_per_second'])}/s, network "
            f"{format_size(speeds['local_bytes_per_second'])}/s among "
            f"{speeds['num_local']} devices and "
            f"{format_size(speeds['remote_bytes_per_second'])}/s per device beyond."
        ] = None
    return "".join(f'<p class="note">{escape(text)}</p>' for text in said)


def _legend(records: Sequence[Mapping[str, Any]]) -> str:
    found = {e["label"] for r in records for e in r["estimate"]["events"]}
    keys = [label for label in (*_PHASES, *_KINDS) if label in found]
    keys += ["other collectives"] if found - {*_PHASES, *_KINDS} else []
    keys += ["network not hidden"] if found else []
    spans = [
        '<span class="key"><svg class="swatch" viewBox="0 0 12 12">'
        f'<rect class="{_css_class(key)}" width="12" height="12"/></svg>{key}</span>'
        for key in keys
    ]
    return f'<p class="legend">{"".join(spans)}</p>'


def _css_class(label: str) -> str:
    if label == "network not hidden":
        return "exposed"
    return f"t-{label}" if label in (*_PHASES, *_KINDS) else "t-else"


def _figure(record: Mapping[str, Any], label: str, end: float) -> str:
    estimate = record["estimate"]
    exposed = estimate["exposed_seconds"]
    share = escape(format_share(exposed, estimate["seconds"]))
    head = (
        f"<figcaption><strong>{escape(label)}</strong> "
        f"<span>{format_seconds(estimate['seconds'])} estimated, network not hidden "
        f"{format_seconds(exposed)}{f' ({share})' if share and exposed else ''}; "
        f"alone, compute {format_seconds(estimate['compute_seconds'])}, network "
        f"{format_seconds(estimate['network_seconds'])}</span></figcaption>"
    )
    if not estimate["events"]:
        return (
            f'<figure class="schedule">{head}<p class="quiet">The schedule has '
            "nothing that takes time.</p></figure>"
        )
    return f'<figure class="schedule">{head}{_draw(record, end)}</figure>'


def _draw(record: Mapping[str, Any], end: float) -> str:
    estimate = record["estimate"]
    lanes: dict[str, list[Mapping[str, Any]]] = {lane: [] for lane in _LANES}
    for event in sorted(estimate["events"], key=lambda e: e["start_seconds"]):
        lanes[event["lane"]].append(event)
    spans = {
        lane: [(e["start_seconds"], e["end_seconds"]) for e in events]
        for lane, events in lanes.items()
    }
    exposed = subtract(spans["network"], spans["compute"])
    # One lane is always busy, so where both are idle, turns of a loop are left out.
    drawn = (*spans["network"], *spans["compute"])
    omitted = subtract([(0.0, estimate["seconds"])], drawn)
    pixels = _DRAWN_PX / end
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH_PX} {_HEIGHT}" role="img" '
        'aria-label="Estimated schedule: compute and network over time">',
        *_axis(end, pixels),
    ]
    for start, stop in exposed:
        title = f"not hidden, {format_seconds(stop - start)}"
        tall, flat = ("exposed-back", 2, _EXPOSED_Y - 2), ("exposed", _EXPOSED_Y, 6)
        for css_class, y, height in (tall, flat):
            parts.append(
                _rect(css_class, start, stop, y, height, pixels=pixels, title=title)
            )
    for start, stop in omitted:
        if (stop - start) * pixels > 1:
            title = "turns of a loop, like those before and not drawn"
            y, height = _LANES["compute"], _LANES["network"] + _LANE_PX - 6
            parts.append(
                _rect("omitted", start, stop, y, height, pixels=pixels, title=title)
            )
            parts.append(
                _write("between", "repeats", start, stop, y + height / 2 + 4, pixels)
            )
    rows = {row["name"]: row for row in record["collectives"]}
    for lane, y in _LANES.items():
        parts.append(
            f'<text class="name" x="{_LEFT_PX - 10}" y="{y + 19}">{lane}</text>'
        )
        for bar in merge_bars(lanes[lane], 1 / pixels):
            parts.append(_draw_bar(bar, rows.get(bar.name), y, pixels))
    parts.append(
        f'<text class="name warn" x="{_LEFT_PX - 10}" y="{_EXPOSED_Y + 7}">'
        "not hidden</text>"
    )
    return "".join((*parts, "</svg>"))


def _axis(end: float, pixels: float) -> Iterator[str]:
    for tick in axis_ticks(end, num_ticks=10):
        x = _LEFT_PX + tick * pixels
        yield (
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="2" y2="{_AXIS_Y}"/>'
            f'<text class="tick" x="{x:.1f}" y="{_AXIS_Y + 15}">{tick * 1e3:.6g}'
            f"{'' if tick else ' ms'}</text>"
        )


def _draw_bar(
    bar: Bar, collective: Mapping[str, Any] | None, y: float, pixels: float
) -> str:
    took = bar.end_seconds - bar.start_seconds
    title = f"{bar.label} {bar.name}".strip()
    if bar.num_events > 1:
        title = f"{bar.num_events} short ones, most of the time {bar.label}"
    title += (
        f"\n{bar.start_seconds * 1e3:.4g} ms to {bar.end_seconds * 1e3:.4g} ms, "
        f"{format_seconds(took)}"
    )
    if collective is not None:
        leaves = collective["leaves"]
        title += f"\n{collective['dtype']}, {format_size(collective['moved_bytes'])}"
        title += "".join(f"\n{leaf}" for leaf in leaves[:6])
        title += f"\nand {len(leaves) - 6} more" if len(leaves) > 6 else ""
    drawn = _rect(
        _css_class(bar.label),
        bar.start_seconds,
        bar.end_seconds,
        y,
        _LANE_PX,
        pixels=pixels,
        title=title,
    )
    written = _write(
        "in-bar", bar.label, bar.start_seconds, bar.end_seconds, y + 19, pixels
    )
    return drawn + written


def _write(
    css_class: str, text: str, start: float, end: float, y: float, pixels: float
) -> str:
    """Writes a word in the middle of a stretch, if it fits there."""
    if (end - start) * pixels <= _CHAR_PX * len(text) + 8:
        return ""
    middle = _LEFT_PX + (start + end) / 2 * pixels
    return f'<text class="{css_class}" x="{middle:.2f}" y="{y}">{escape(text)}</text>'


def _rect(
    css_class: str,
    start: float,
    end: float,
    y: float,
    height: float,
    *,
    pixels: float,
    title: str,
) -> str:
    # Half a pixel is the least that shows.
    width = max(0.5, (end - start) * pixels)
    return (
        f'<rect class="{css_class}" x="{_LEFT_PX + start * pixels:.2f}" y="{y}" '
        f'width="{width:.2f}" height="{height}"><title>{escape(title)}</title></rect>'
    )
