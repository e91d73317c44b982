"""Which saved step a person means, and where its arrays lie.

Lives here: reading `runs/a`, `runs/a@100` and paths of folders; saying what is wrong
with what is not there. Checkpoints that Orbax wrote without jzero are found too: they
have arrays, but no manifest. May import: `steps.py`, `manifest.py`. Read next:
`leaves.py`, which opens what is found here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

import orbax.checkpoint as ocp
from etils import epath

from jzero.checkpoint.manifest import MANIFEST_ITEM, STATE_ITEM, Manifest
from jzero.checkpoint.steps import SavedStep, look_at, scan_steps, step_folder
from jzero.errors import CheckpointError, format_problem

__all__ = ["Source", "find_foreign", "find_source", "split_reference"]

_REFERENCE = re.compile(r"(?P<directory>.+)@(?P<step>\d+)")
# What Orbax calls the one thing that it saved, where nobody gave it a name.
_USUAL_ITEMS = (STATE_ITEM, "default", "pytree")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One saved step.

    Attributes:
        name: How texts call it.
        folder: Its folder.
        arrays_folder: The folder within, or the same, that holds the arrays.
        step: Its number; None for arrays that were saved without one.
        manifest: What jzero wrote about it; None if something else saved it.
    """

    name: str
    folder: epath.Path
    arrays_folder: epath.Path
    step: int | None
    manifest: Manifest | None


def split_reference(source: str | os.PathLike[str]) -> tuple[epath.Path, int | None]:
    """Splits `runs/a@100` into folder and step; without `@` there is no step.

    Example:
        >>> split_reference("runs/a@100")
        (PosixGPath('runs/a'), 100)

    Raises:
        CheckpointError: A library for remote storage is missing.
    """
    text = os.fspath(source)
    match = _REFERENCE.fullmatch(text)
    is_local = "://" not in text
    if match is None or (is_local and epath.Path(text).exists()):
        return _reached(text), None
    return _reached(match["directory"]), int(match["step"])


def _reached(text: str) -> epath.Path:
    """Returns a path whose kind of storage can be read."""
    path = epath.Path(text)
    try:
        path.exists()
    except ImportError as error:
        raise CheckpointError(
            f"{text} cannot be reached: {error}.\n"
            "Remedy: install what etils.epath needs for it: gcsfs for gs://, s3fs for "
            "s3://."
        ) from error
    return path


def find_source(source: str | os.PathLike[str]) -> Source:
    """Finds the step that a person means.

    Args:
        source: `runs/a` for the newest complete step, `runs/a@100` for one step, or
            the folder of a step. Folders that Orbax wrote without jzero do as well.

    Returns:
        Where it is.

    Raises:
        CheckpointError: There is no such step, or it is not complete.
    """
    directory, step = split_reference(source)
    if not directory.is_dir():
        what = "is a file, not a folder" if directory.exists() else "does not exist"
        raise CheckpointError(
            f"{directory} {what}.\n"
            "Remedy: name a folder of steps (runs/a), a step in it (runs/a@100), or "
            "the folder of a step."
        )
    if step is not None:
        folder = step_folder(directory, step)
        if not folder.is_dir():
            raise CheckpointError(
                format_problem(
                    f"{directory} has no step {step}. It has:",
                    _rows(scan_steps(directory)),
                    "name one that is complete.",
                )
            )
        return _in_step(folder, f"{directory}@{step}")
    if (directory / "_METADATA").exists():
        return _bare(directory)
    if directory.name.isdigit() and not _has_steps(directory):
        return _in_step(directory, str(directory))
    return _newest(directory)


def _in_step(folder: epath.Path, name: str) -> Source:
    """Takes the step of one folder, or says why not."""
    saved = look_at(folder)
    if saved.is_complete:
        return Source(
            name=name,
            folder=folder,
            arrays_folder=folder / STATE_ITEM,
            step=saved.step,
            manifest=saved.manifest,
        )
    found = find_foreign(folder, name)
    if found is not None:
        return found
    problem = (saved.problem or "").rstrip(".")
    raise CheckpointError(
        format_problem(
            f"{name} is not complete: {problem}. {folder.parent} has:",
            _rows(scan_steps(folder.parent)),
            "name one that is complete.",
        )
    )


def _newest(directory: epath.Path) -> Source:
    """Takes the newest complete step of a folder, one of jzero before others."""
    steps = scan_steps(directory)
    for saved in reversed(steps):
        if saved.is_complete:
            return _in_step(saved.folder, f"{directory}@{saved.step}")
    for saved in reversed(steps):
        found = find_foreign(saved.folder, f"{directory}@{saved.step}")
        if found is not None:
            return found
    if steps:
        raise CheckpointError(
            format_problem(
                f"{directory} has no complete step:",
                _rows(steps),
                "name another folder.",
            )
        )
    inside = [path.name for path in sorted(directory.iterdir())]
    raise CheckpointError(
        format_problem(
            f"{directory} is not a checkpoint: it holds neither steps nor arrays"
            f"{', but:' if inside else '.'}",
            inside,
            "name the folder that jzero.Checkpointer or Orbax was given.",
            max_rows=8,
        )
    )


def _bare(folder: epath.Path) -> Source:
    """Takes a folder of arrays, which may belong to a step."""
    if (folder.parent / MANIFEST_ITEM).is_dir():
        return _in_step(folder.parent, str(folder.parent))
    step = int(folder.parent.name) if folder.parent.name.isdigit() else None
    return Source(
        name=str(folder), folder=folder, arrays_folder=folder, step=step, manifest=None
    )


def find_foreign(folder: epath.Path, name: str) -> Source | None:
    """Finds the arrays of a step that Orbax wrote without jzero.

    Args:
        folder: The folder of the step.
        name: How texts call it.

    Returns:
        Where they are; None if it is no such step, or was not committed.

    Raises:
        CheckpointError: It holds several sets of arrays, none under a usual name.
    """
    is_ours = (folder / MANIFEST_ITEM).exists()
    if is_ours or not folder.name.isdigit():
        return None
    if not ocp.path.step.is_checkpoint_finalized(folder):
        return None
    folders = [
        path
        for path in (folder, *sorted(folder.iterdir()))
        if path.is_dir() and (path / "_METADATA").exists()
    ]
    named = {path.name: path for path in folders}
    chosen = folders if len(folders) == 1 else []
    chosen += [named[item] for item in _USUAL_ITEMS if item in named]
    if not folders:
        return None
    if not chosen:
        raise CheckpointError(
            format_problem(
                f"{name} holds several things that Orbax saved:",
                [str(path) for path in folders],
                "name one of these folders.",
            )
        )
    return Source(
        name=name,
        folder=folder,
        arrays_folder=chosen[0],
        step=int(folder.name),
        manifest=None,
    )


def _has_steps(directory: epath.Path) -> bool:
    """Says whether a folder that is called like a step holds steps itself."""
    return any(saved.is_complete for saved in scan_steps(directory))


def _rows(steps: Iterable[SavedStep]) -> list[tuple[str, str]]:
    rows = [(str(s.step), s.problem or "complete") for s in steps]
    return rows or [("no step", "at all")]
