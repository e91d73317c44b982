"""What one step sends, as tables: totals against the formula, and the largest ones.

Lives here: the section on collectives of one record. May import: `numbers`. Read next:
`report_html.py`, which puts the page together.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from jzero.audit.numbers import format_share, format_size

__all__ = ["render_collectives", "show_source"]

_FORMULA_KINDS = ("all-gather", "reduce-scatter", "all-reduce")
_MAX_ROWS = 20
_BAR_PX = 150


def render_collectives(record: Mapping[str, Any], label: str) -> str:
    """Writes what one record sends.

    Args:
        record: As `StepReport.to_dict` returns it.
        label: A short name for it.

    Returns:
        A section of HTML.
    """
    largest = _largest(record) if record["collectives"] else ""
    return (
        f'<section class="sent"><h2>Sent by one device per step '
        f"<small>{escape(label)}</small></h2>"
        f"{_totals(record)}{largest}</section>"
    )


def _totals(record: Mapping[str, Any]) -> str:
    formula = record["formula"]
    of = f"{8 * formula['elem_bytes']} bits"
    if formula["num_micro_batches"] > 1:
        of += f", {formula['num_micro_batches']} micro-batches"
    sums: dict[str, list[int]] = {}
    for row in record["collectives"]:
        entry = sums.setdefault(row["kind"], [0, 0, 0])
        entry[0] += row["step_moved_bytes"]
        entry[1] += row["runs"]
        entry[2] += row["exposed_bytes"]
    expected = {
        kind: formula[f"{kind.replace('-', '_')}_bytes"] for kind in _FORMULA_KINDS
    }
    kinds = list(dict.fromkeys((*_FORMULA_KINDS, *sums)))
    longest = max(
        (*expected.values(), *(moved for moved, _, _ in sums.values())), default=0
    )
    rows = "".join(
        _total_row(kind, expected.get(kind, 0), sums.get(kind, [0, 0, 0]), longest)
        for kind in kinds
    )
    moved, exposed = record["moved_bytes"], record["exposed_bytes"]
    runs = sum(entry[1] for entry in sums.values())
    return (
        '<table class="numbers"><thead><tr><th scope="col">collective</th>'
        f'<th scope="col">formula, {of}</th><th scope="col">compiled</th>'
        '<th scope="col">ratio</th><th scope="col" class="picture">'
        "compiled, and the formula as a mark</th>"
        '<th scope="col">runs</th><th scope="col">not hidden</th></tr></thead>'
        f"<tbody>{rows}</tbody><tfoot><tr>"
        f'<th scope="row">all</th><td>{format_size(formula["moved_bytes"])}</td>'
        f"<td>{format_size(moved)}</td>"
        f"<td>{_ratio(moved, formula['moved_bytes'])}</td><td></td><td>{runs}</td>"
        f"<td>{format_size(exposed)} {_share(exposed, moved)}</td></tr></tfoot></table>"
    )


def _total_row(kind: str, expected: int, entry: list[int], longest: int) -> str:
    moved, runs, exposed = entry
    scale = _BAR_PX / longest if longest else 0.0
    mark = min(_BAR_PX, expected * scale)
    name = f'<tr><th scope="row">{_swatch(kind)}{escape(kind)}</th>'
    if not expected and not moved:
        return f'{name}<td colspan="6"><span class="quiet">none</span></td></tr>'
    picture = (
        f'<svg class="bullet" viewBox="0 0 {_BAR_PX + 2} 14" aria-hidden="true">'
        f'<rect class="{_css_class(kind)}" y="3" width="{moved * scale:.1f}" '
        'height="8"/>'
        f'<line class="mark" x1="{mark:.1f}" x2="{mark:.1f}" y1="0" y2="14"/></svg>'
    )
    return (
        f"{name}<td>{format_size(expected)}</td><td>{format_size(moved)}</td>"
        f'<td>{_ratio(moved, expected)}</td><td class="picture">{picture}</td>'
        f"<td>{runs}</td><td>{format_size(exposed)} {_share(exposed, moved)}</td></tr>"
    )


def _largest(record: Mapping[str, Any]) -> str:
    ranked = sorted(record["collectives"], key=lambda row: -row["step_moved_bytes"])
    shown, rest = ranked[:_MAX_ROWS], ranked[_MAX_ROWS:]
    longest = shown[0]["step_moved_bytes"]
    more = ""
    if rest:
        rest_bytes = sum(row["step_moved_bytes"] for row in rest)
        more = f'<p class="quiet">{len(rest)} more, {format_size(rest_bytes)}.</p>'
    return (
        '<h3>Largest collectives</h3><table class="largest numbers"><thead><tr>'
        '<th scope="col">collective</th><th scope="col">runs</th>'
        '<th scope="col">group</th><th scope="col">sent</th>'
        '<td class="picture"></td><th scope="col" class="keyed">'
        '<svg class="swatch" viewBox="0 0 12 12"><rect class="exposed" width="12" '
        'height="12"/></svg>not hidden</th>'
        '<th scope="col" class="words">leaves</th>'
        '<th scope="col" class="words">source</th></tr></thead>'
        f"<tbody>{''.join(_large_row(row, longest) for row in shown)}</tbody></table>"
        f"{more}"
    )


def _large_row(row: Mapping[str, Any], longest: int) -> str:
    moved, exposed = row["step_moved_bytes"], row["exposed_bytes"]
    scale = _BAR_PX / longest if longest else 0.0
    picture = (
        f'<svg class="bullet" viewBox="0 0 {_BAR_PX + 2} 14" aria-hidden="true">'
        f'<rect class="{_css_class(row["kind"])}" y="3" width="{moved * scale:.1f}" '
        f'height="8"/><rect class="exposed" y="8" width="{exposed * scale:.1f}" '
        'height="3"/></svg>'
    )
    runs = f"{row['runs']}" if row["is_runs_known"] else f"{row['runs']}?"
    known = "" if row["is_runs_known"] else ' title="a loop of unknown length"'
    sync = "" if row["is_async"] else ", which nothing can overlap"
    operands = ", ".join(row["operands"])
    what = f"{row['name']}: {operands}{sync}\n{row['op_name']}"
    group = f"{row['num_groups']}&times;{row['group_size']}"
    return (
        f'<tr><th scope="row" title="{escape(what)}">{_swatch(row["kind"])}'
        f"{escape(row['kind'])} <small>{escape(row['dtype'])}</small></th>"
        f"<td{known}>{runs}</td><td>{group}</td><td>{format_size(moved)}</td>"
        f'<td class="picture">{picture}</td>'
        f"<td>{format_size(exposed)}</td>"
        f'<td class="words">{_leaves(row["leaves"])}</td>'
        f'<td class="words">{show_source(row["source"] or "")}</td></tr>'
    )


def _leaves(leaves: list[str]) -> str:
    if not leaves:
        return '<span class="quiet">no leaf of the state</span>'
    # The first says where in the model it is; a gather may carry a whole layer.
    more = f' <span class="quiet">+{len(leaves) - 1}</span>' if len(leaves) > 1 else ""
    every = escape("\n".join(leaves))
    # Long paths break between their keys rather than inside one.
    first = escape(leaves[0]).replace("[", "<wbr>[")
    return f'<span title="{every}"><code>{first}</code>{more}</span>'


def show_source(source: str) -> str:
    """Writes the file and the line of a source; the whole path is its title.

    Example:
        >>> show_source("deep/inside/model.py:7")
        '<code title="deep/inside/model.py:7">model.py:7</code>'
    """
    if not source:
        return ""
    short = source.replace("\\", "/").rpartition("/")[2]
    return f'<code title="{escape(source)}">{escape(short)}</code>'


def _swatch(kind: str) -> str:
    return (
        '<svg class="swatch" viewBox="0 0 12 12" aria-hidden="true">'
        f'<rect class="{_css_class(kind)}" width="12" height="12"/></svg>'
    )


def _css_class(kind: str) -> str:
    return f"t-{kind}" if kind in _FORMULA_KINDS else "t-else"


def _ratio(moved: int, expected: int) -> str:
    return f"{moved / expected:.3f}" if expected else ""


def _share(part: int, whole: int) -> str:
    share = format_share(part, whole) if part else ""
    return f'<span class="quiet">{escape(share)}</span>' if share else ""
