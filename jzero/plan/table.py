"""How a plan is shown: as a table, as plain text, and as plain data.

Lives here: presentation, no decision. May import: `layout.py` at run time, and
`plan.py` for types alone. Read next: nothing; this is the last file of `plan/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from io import StringIO
from typing import TYPE_CHECKING, Any, cast

from jax.sharding import PartitionSpec
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from jzero.offload import Offload
from jzero.plan.layout import describe_axes, format_spec

if TYPE_CHECKING:
    from jzero.plan.plan import Plan

__all__ = ["build_table", "format_bytes", "plain_text", "plan_to_dict", "render_text"]

# Wide enough for the numbers beside a long path. What is longer folds, the reason
# before the path.
_WIDTH_CHARS = 160
_PATH_CHARS = 64
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(num_bytes: int) -> str:
    """Writes a number of bytes for people.

    Example:
        >>> format_bytes(48), format_bytes(3 * 2**19)
        ('48 B', '1.50 MiB')
    """
    size, unit = float(num_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{num_bytes} B" if unit == 0 else f"{size:.2f} {_UNITS[unit]}"


def render_text(plan: Plan) -> str:
    """Writes a plan as plain text without colour codes."""
    return plain_text(build_table(plan), _WIDTH_CHARS)


def plain_text(renderable: RenderableType, width_chars: int) -> str:
    """Writes what rich would show, without colour codes."""
    out = StringIO()
    # Everything is fixed, so that the text does not depend on the terminal.
    console = Console(
        file=out,
        width=width_chars,
        color_system=None,
        force_terminal=False,
        legacy_windows=False,
    )
    console.print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def build_table(plan: Plan) -> RenderableType:
    """Builds what `rich` prints: headline, leaves, totals, exceptions, notes."""
    parts: list[RenderableType] = [Text(_headline(plan), style="bold")]
    parts.append(_state_table(plan))
    parts.append(_totals_table(plan))
    parts += _large_leaves(plan)
    if plan.batch:
        parts.append(_batch_table(plan))
    parts += [Text(note) for note in plan.notes]
    if plan.num_micro_batches > 1:
        parts.append(Text(f"micro-batches: {plan.num_micro_batches}"))
    return Group(*parts)


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Returns a plan as plain dicts, lists, texts and numbers."""
    return {
        "stage": plan.stage,
        "placement": _record(plan.placement),
        "axis_sizes": dict(plan.axis_sizes),
        "zero_axes": list(plan.zero_axes),
        "batch_axes": list(plan.batch_axes),
        "config": _record(plan.config),
        "state": [_record(leaf) for leaf in plan.state],
        "batch": [_record(leaf) for leaf in plan.batch],
        "totals": [_record(total) for total in plan.totals],
        "replicated_large": [leaf.path for leaf in plan.replicated_large],
        "local_bytes": plan.local_bytes,
        "host_bytes": plan.host_bytes,
        "global_bytes": plan.global_bytes,
        "notes": list(plan.notes),
        "num_micro_batches": plan.num_micro_batches,
    }


def _record(record: Any) -> dict[str, Any]:
    return {
        field.name: _plain(field.name, getattr(record, field.name))
        for field in fields(record)
    }


def _plain(name: str, value: Any) -> Any:
    if name == "dtype":
        return str(value)
    if isinstance(value, PartitionSpec):
        return [_plain("", entry) for entry in value]
    if isinstance(value, tuple):
        return [_plain("", entry) for entry in cast(tuple[Any, ...], value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Offload):
        return _record(value)
    return repr(value)


def _headline(plan: Plan) -> str:
    sizes = dict(plan.axis_sizes)
    mesh = describe_axes(tuple(sizes), sizes) or "no axes"
    return (
        f"ZeRO stage {plan.stage} on a mesh of {mesh}: state over "
        f"{', '.join(plan.zero_axes)}, batch over {', '.join(plan.batch_axes)}"
    )


def _table(
    title: str,
    columns: Sequence[str],
    *,
    right: Sequence[str] = (),
    paths: Sequence[str] = (),
) -> Table:
    path_chars = min(max(map(len, paths), default=0), _PATH_CHARS)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in right else "left",
            overflow="fold",
            # Only paths and reasons may fold; a folded number is hard to read.
            no_wrap=column not in ("leaf", "why"),
            width=path_chars if column == "leaf" else None,
        )
    return table


def _state_table(plan: Plan) -> Table:
    columns = ("leaf", "role", "shape", "dtype", "spec", "memory", "per device", "why")
    paths = [leaf.path for leaf in plan.state]
    table = _table("State", columns, right=("per device",), paths=paths)
    for leaf in plan.state:
        table.add_row(
            Text(leaf.path),
            leaf.role,
            Text(_shape(leaf.shape)),
            str(leaf.dtype),
            Text(format_spec(leaf.spec)),
            leaf.memory_kind.removeprefix("pinned_"),
            format_bytes(leaf.local_bytes),
            Text(leaf.reason),
        )
    return table


def _totals_table(plan: Plan) -> Table:
    has_host = plan.host_bytes > 0
    numbers = ("leaves", "whole", "per device")
    if has_host:
        numbers = (*numbers, "host, per device")
    table = _table("Totals", ("role", *numbers), right=numbers)
    for total in plan.totals:
        table.add_row(
            total.role,
            str(total.num_leaves),
            format_bytes(total.global_bytes),
            format_bytes(total.local_bytes),
            *([format_bytes(total.host_bytes)] if has_host else []),
        )
    table.add_row(
        "all",
        str(len(plan.state)),
        format_bytes(plan.global_bytes),
        format_bytes(plan.local_bytes),
        *([format_bytes(plan.host_bytes)] if has_host else []),
    )
    return table


def _batch_table(plan: Plan) -> Table:
    columns = ("leaf", "shape", "dtype", "spec", "why")
    paths = [leaf.path for leaf in plan.batch]
    table = _table("Other arguments", columns, paths=paths)
    for leaf in plan.batch:
        table.add_row(
            Text(leaf.path),
            Text(_shape(leaf.shape)),
            str(leaf.dtype),
            Text(format_spec(leaf.spec)),
            Text(leaf.reason),
        )
    return table


def _large_leaves(plan: Plan) -> list[RenderableType]:
    """Lists what was large enough to be split, and was not."""
    leaves = plan.replicated_large
    if not leaves:
        return []
    count = f"{len(leaves)} {'leaf' if len(leaves) == 1 else 'leaves'}"
    kept = format_bytes(sum(leaf.local_bytes for leaf in leaves))
    headline = (
        f"Not split over {', '.join(plan.zero_axes)} although of "
        f"{plan.config.persistence_threshold} elements or more: {count}, {kept} per "
        "device"
    )
    lines = [
        Text(f"  {leaf.path}  {format_bytes(leaf.local_bytes)}: {leaf.reason}")
        for leaf in leaves
    ]
    return [Text(headline, style="yellow"), *lines, Text()]


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
