"""Tables of checkpoints for the command line.

Lives here: presentation with rich, no decision. May import: checkpoint and below; its
types alone, for its libraries may not be installed. Read next: `ckpt.py`, which prints
what is built here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from jzero.audit.numbers import format_size
from jzero.cli.show import plain_table

if TYPE_CHECKING:
    from jzero.checkpoint import CheckedStep, Consolidated, Diff, ListedStep
    from jzero.checkpoint.manifest import Manifest

__all__ = [
    "checked_table",
    "consolidated_text",
    "diff_table",
    "leaves_table",
    "steps_table",
]


def steps_table(directory: str, steps: Iterable[ListedStep]) -> Table:
    """One row per step folder.

    Args:
        directory: What was listed.
        steps: What was found.
    """
    table = plain_table(directory, ("step",))
    # Wrapped rather than cut off, on a narrow terminal.
    table.add_column("state")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("stage", justify="right")
    for heading in ("devices", "saved (UTC)", "versions"):
        table.add_column(heading)
    for step in steps:
        number = "" if step.step is None else str(step.step)
        state = "complete"
        if step.problem is not None:
            state = escape(f"INCOMPLETE: {step.problem}")
        elif step.is_foreign:
            state = "complete, by Orbax without jzero"
        cells: tuple[str, ...] = ()
        if step.manifest is not None:
            saved = step.manifest
            versions = saved.versions.items()
            cells = (
                str(saved.stage),
                f"{saved.num_devices} ({_mesh(saved)})",
                saved.time_utc[:19].replace("T", " "),
                ", ".join(f"{name} {version}" for name, version in versions),
            )
        table.add_row(number, state, format_size(step.size_bytes), *cells)
    return table


def leaves_table(manifest: Manifest) -> Table:
    """One row per leaf of a step.

    Args:
        manifest: What the step holds.
    """
    table = plain_table(f"step {manifest.step}", ("path", "dtype", "shape", "role"))
    for heading in ("sharded as", "memory", "same as"):
        table.add_column(heading)
    for leaf in manifest.leaves:
        table.add_row(
            escape(leaf.path),
            leaf.dtype,
            "x".join(map(str, leaf.shape)) or "scalar",
            leaf.role,
            ", ".join("-" if entry is None else str(entry) for entry in leaf.spec),
            leaf.memory_kind,
            escape(manifest.aliases.get(leaf.path, "")),
        )
    return table


def consolidated_text(done: Consolidated) -> str:
    """Says in a line or two what was written.

    Args:
        done: What was written.
    """
    step = "" if done.step is None else f" of step {done.step}"
    lines = [
        f"{done.folder}: {done.num_tensors} tensors{step}, "
        f"{format_size(done.size_bytes)}, in {len(done.files)} "
        f"file{'s' if len(done.files) > 1 else ''}"
    ]
    lines += [f"{name} is {same}" for name, same in done.aliases.items()]
    return escape("\n".join(lines))


def diff_table(diff: Diff) -> Table:
    """One row per leaf that differs.

    Args:
        diff: What was found.
    """
    table = plain_table(
        f"{len(diff.leaves)} of {diff.num_leaves} leaves differ",
        ("path", "differs in", "max abs", "elements"),
    )
    for name in diff.names:
        table.add_column(escape(name))
    for leaf in diff.leaves:
        table.add_row(
            escape(leaf.path),
            leaf.kind,
            "" if leaf.max_abs is None else f"{leaf.max_abs:.3g}",
            "" if leaf.num_elems is None else str(leaf.num_elems),
            escape(leaf.first),
            escape(leaf.second),
        )
    return table


def checked_table(source: str, steps: Iterable[CheckedStep]) -> Table:
    """One row per step, and one per file that is not as it was written.

    Args:
        source: What was checked.
        steps: What was found.
    """
    table = plain_table(source, ("step", "files", "bytes"))
    table.add_column("found", overflow="fold")
    for step in steps:
        number = step.folder.name if step.step is None else str(step.step)
        if step.problems:
            found = "DAMAGED"
        elif not step.is_committed:
            found = "its save broke off; not counted as a step"
        elif not step.has_checksums:
            found = "readable; it has no checksums to compare with"
        else:
            found = "every byte as it was written"
        table.add_row(number, str(step.num_files), format_size(step.size_bytes), found)
        for problem in step.problems:
            text = f"{step.folder / problem.name} {problem.what}"
            table.add_row("", "", "", escape(text))
    return table


def _mesh(manifest: Manifest) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in manifest.mesh_axes.items())
