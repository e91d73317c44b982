"""The memory of one device as a picture: a stacked bar a record, on one scale.

Lives here: what a bar is made of, its SVG, and the table that is also its legend. May
import: `numbers`. Read next: `report_html_timeline.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from jzero.audit.numbers import axis_ticks, format_share, format_size
from jzero.plan.host import DEVICE

__all__ = ["Segment", "bar_segments", "render_memory"]

_LABELS = {
    "parameter": "parameters",
    "optimizer": "optimizer",
    "other": "other state",
    "data": "data",
    "arguments": "state and data",
    "temporaries": "temporaries",
    "output": "new results",
}
_WIDTH_PX = 980
_RIGHT_PX = 132
_ROW_PX, _TALL_ROW_PX = 46, 60
_BAR_PX = 28
_CHAR_PX = 6.6
# Longer labels stand above their bars.
_MAX_LABEL_CHARS = 24
# A limit further off than this would press the bars into the corner.
_MAX_LIMIT_RATIO = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One part of a bar.

    Attributes:
        role: A role of the state, "data", "arguments", "temporaries" or "output".
        num_bytes: Its length.
        note: What there is to know of it besides.
    """

    role: str
    num_bytes: int
    note: str = ""


def bar_segments(record: Mapping[str, Any]) -> list[Segment]:
    """Cuts the device peak of one record into what it is made of.

    Args:
        record: As `StepReport.to_dict` returns it.

    Returns:
        Segments, whose bytes sum to the peak.
    """
    memory = record["memory"]
    argument_bytes = memory["argument_bytes"]
    segments = [
        Segment(
            role=row["role"],
            num_bytes=row["compiled_bytes"],
            note=f"{row['num_leaves']} arrays, {format_size(row['planned_bytes'])} "
            "by the plan",
        )
        for row in record["resident"]
        if row["memory_kind"] == DEVICE
    ]
    named_bytes = sum(segment.num_bytes for segment in segments)
    if named_bytes > argument_bytes:
        # Nothing says which of the roles the host holds.
        note = "a part of the arguments lies in host memory"
        segments = [Segment(role="arguments", num_bytes=argument_bytes, note=note)]
    elif named_bytes < argument_bytes:
        rest = argument_bytes - named_bytes
        segments.append(Segment(role="arguments", num_bytes=rest, note="of no role"))
    return [
        *segments,
        Segment(role="temporaries", num_bytes=memory["temp_bytes"]),
        Segment(
            role="output",
            num_bytes=memory["output_bytes"] - memory["alias_bytes"],
            note="results that reuse no argument",
        ),
    ]


def render_memory(
    records: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    *,
    hbm_bytes: int | None = None,
) -> str:
    """Draws the memory of all records.

    Args:
        records: As `StepReport.to_dict` returns them.
        labels: A short name for each.
        hbm_bytes: Memory of the device, None if unknown.

    Returns:
        A section of HTML.
    """
    bars = [bar_segments(record) for record in records]
    if any(_waiting(record) for record in records):
        waiting = (
            '<span class="key"><svg class="swatch" viewBox="0 0 12 12">'
            '<rect class="m-temporaries" width="12" height="12"/>'
            '<rect class="hatched" width="12" height="12"/></svg>'
            "the hatched part of the temporaries: whole gradients that wait for "
            "their reduction, at most</span>"
        )
    else:
        waiting = ""
    return (
        '<section class="memory"><h2>Memory of one device</h2>'
        f"<figure>{_draw_bars(records, labels, bars, hbm_bytes)}</figure>"
        f'<p class="legend">{waiting}</p>'
        f"{_table(records, labels, bars, hbm_bytes)}</section>"
    )


def _waiting(record: Mapping[str, Any]) -> int:
    """Bytes of gradients that wait, 0 if they cannot be a part of the temporaries."""
    waiting = record["waiting_gradient_bytes"]
    return waiting if waiting < record["memory"]["temp_bytes"] else 0


def _draw_bars(
    records: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    bars: Sequence[Sequence[Segment]],
    hbm_bytes: int | None,
) -> str:
    longest = max(sum(s.num_bytes for s in bar) for bar in bars)
    limit = hbm_bytes or 0
    is_limit_drawn = 0 < limit <= _MAX_LIMIT_RATIO * longest
    end = max(longest, limit if is_limit_drawn else 0) or 1
    label_chars = max(map(len, labels))
    is_beside = label_chars <= _MAX_LABEL_CHARS
    left = 14 + _CHAR_PX * label_chars if is_beside else 16.0
    pixels = (_WIDTH_PX - left - _RIGHT_PX) / end
    top = 24 if is_limit_drawn else 6
    row_px = _ROW_PX if is_beside else _TALL_ROW_PX
    bottom = top + row_px * len(bars)
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH_PX} {bottom + 24}" role="img" '
        'aria-label="Bytes of one device, as the table below lists them">',
        # Only this figure uses the pattern besides its legend.
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse"'
        ' patternTransform="rotate(45)"><line class="hatch-line" x1="1" y1="0" x2="1"'
        ' y2="6"/></pattern></defs>',
    ]
    for tick in axis_ticks(end):
        x = left + tick * pixels
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'
            f'<text class="tick" x="{x:.1f}" y="{bottom + 16}">'
            f"{format_size(tick) if tick else '0'}</text>"
        )
    for row, (record, label, bar) in enumerate(zip(records, labels, bars, strict=True)):
        # Bars end 9 above the next row, whatever stands before or above them.
        y = top + (row + 1) * row_px - 9 - _BAR_PX
        parts.append(
            _draw_bar(
                record,
                label,
                bar,
                left=left,
                y=y,
                pixels=pixels,
                is_beside=is_beside,
            )
        )
    if is_limit_drawn:
        x = left + limit * pixels
        anchor = "end" if x > _WIDTH_PX / 2 else "start"
        line = f'x1="{x:.1f}" x2="{x:.1f}" y1="18" y2="{bottom}"'
        parts.append(
            f'<line class="limit-back" {line}/><line class="limit" {line}/>'
            f'<text class="limit-text" x="{x:.1f}" y="12" text-anchor="{anchor}">'
            f"the device has {format_size(limit)}</text>"
        )
    return "".join((*parts, "</svg>"))


def _draw_bar(
    record: Mapping[str, Any],
    label: str,
    bar: Sequence[Segment],
    *,
    left: float,
    y: float,
    pixels: float,
    is_beside: bool,
) -> str:
    middle = y + _BAR_PX / 2 + 4
    place = f'class="name" x="{left - 10:.1f}" y="{middle:.1f}"'
    if not is_beside:
        place = f'class="name above" x="{left:.1f}" y="{y - 6:.1f}"'
    parts = [f'<g class="bar"><text {place}>{escape(label)}</text>']
    x = left
    for segment in bar:
        width = segment.num_bytes * pixels
        if not segment.num_bytes:
            continue
        text = f"{_LABELS.get(segment.role, segment.role)}"
        title = f"{text}: {format_size(segment.num_bytes)}"
        title += f" ({segment.note})" if segment.note else ""
        box = f'x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_BAR_PX}"'
        parts.append(
            f'<rect class="m-{escape(segment.role)}" {box}>'
            f"<title>{escape(title)}</title></rect>"
        )
        if segment.role == "temporaries" and _waiting(record):
            hatched = _waiting(record)
            parts.append(
                f'<rect class="hatched" x="{x:.2f}" y="{y}" '
                f'width="{hatched * pixels:.2f}" height="{_BAR_PX}"><title>whole '
                f"gradients waiting, at most: {format_size(hatched)}</title></rect>"
            )
            x, width = x + hatched * pixels, width - hatched * pixels
        if width > _CHAR_PX * len(text) + 10:
            parts.append(
                f'<text class="in-bar" x="{x + width / 2:.2f}" y="{middle:.1f}">'
                f"{escape(text)}</text>"
            )
        x += width
    peak = format_size(record["memory"]["device_peak_bytes"])
    parts.append(f'<text class="value" x="{x + 8:.1f}" y="{middle:.1f}">{peak}</text>')
    return "".join((*parts, "</g>"))


def _table(
    records: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    bars: Sequence[Sequence[Segment]],
    hbm_bytes: int | None,
) -> str:
    roles = [r for r in _LABELS if any(s.role == r for bar in bars for s in bar)]
    has_host = any(record["memory"]["host_peak_bytes"] for record in records)
    heads = [
        '<th scope="col" class="keyed"><svg class="swatch" viewBox="0 0 12 12">'
        f'<rect class="m-{role}" width="12" height="12"/></svg>{_LABELS[role]}</th>'
        for role in roles
    ]
    heads.append('<th scope="col">gradients waiting</th><th scope="col">peak</th>')
    if hbm_bytes:
        heads.append(f'<th scope="col" class="keyed">of {format_size(hbm_bytes)}</th>')
    heads += ['<th scope="col">host memory</th>'] if has_host else []
    rows: list[str] = []
    for record, label, bar in zip(records, labels, bars, strict=True):
        memory, sizes = record["memory"], {s.role: s for s in bar}
        cells = [
            f'<td title="{escape(sizes[role].note)}">'
            f"{format_size(sizes[role].num_bytes)}</td>"
            if role in sizes
            else "<td></td>"
            for role in roles
        ]
        peak = memory["device_peak_bytes"]
        cells.append(f"<td>{format_size(record['waiting_gradient_bytes'])}</td>")
        cells.append(f"<td><strong>{format_size(peak)}</strong></td>")
        if hbm_bytes:
            over = ' class="over"' if peak > hbm_bytes else ""
            cells.append(f"<td{over}>{escape(format_share(peak, hbm_bytes))}</td>")
        if has_host:
            cells.append(f"<td>{format_size(memory['host_peak_bytes'])}</td>")
        # The column is narrow: long names break between their words.
        broken = escape(label).replace("_", "_<wbr>")
        name = f'<th scope="row">{broken}</th>'
        rows.append(f"<tr>{name}{''.join(cells)}</tr>")
    return (
        f'<div class="scroll"><table class="numbers tight"><thead><tr><td></td>'
        f"{''.join(heads)}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
