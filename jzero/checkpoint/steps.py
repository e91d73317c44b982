"""Which steps a folder holds, and which of them are complete.

A step counts if it was committed: its manifest and its checksums are there, and
every file has the length that it was written with. A folder with a number for a name
proves nothing: killed saves, copies cut short and empty folders look like steps,
too. Lives here: the scan. May import: `manifest.py`, `checksums.py`, Orbax. Read
next: `checkpointer.py`, which saves and restores them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import orbax.checkpoint as ocp
from etils import epath

from jzero.checkpoint.checksums import check_files, read_checksums
from jzero.checkpoint.manifest import Manifest, read_manifest
from jzero.errors import CheckpointError

__all__ = ["SavedStep", "latest_complete", "look_at", "scan_steps", "step_folder"]

# Names that a step has, or had until its save broke off: `3`, `3.orbax-...`, `3.tmp`.
_NAME = re.compile(r"(\d+)(\..*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedStep:
    """One step of a folder.

    Attributes:
        step: Its number.
        folder: Where it is.
        problem: Why it is not complete, or None if it is.
        manifest: What it holds; None where that cannot be read.
    """

    step: int
    folder: epath.Path
    problem: str | None
    manifest: Manifest | None

    @property
    def is_complete(self) -> bool:
        """Whether the step was written to its end and is all there."""
        return self.problem is None


def step_folder(directory: epath.PathLike, step: int) -> epath.Path:
    """Returns the folder of a committed step."""
    return epath.Path(directory) / str(step)


def scan_steps(directory: epath.PathLike) -> tuple[SavedStep, ...]:
    """Looks at every step of a folder, complete or not.

    Args:
        directory: What `jzero.Checkpointer` was given. A folder that does not exist
            has no steps.

    Returns:
        One record per step folder, the lowest number first.
    """
    return tuple(look_at(folder) for _, folder in sorted(_folders(directory)))


def latest_complete(directory: epath.PathLike) -> SavedStep | None:
    """Finds the complete step with the highest number; looks at no more than needed."""
    for _, folder in sorted(_folders(directory), reverse=True):
        found = look_at(folder)
        if found.is_complete:
            return found
    return None


def look_at(folder: epath.PathLike) -> SavedStep:
    """Judges one step folder by its records and the lengths of its files."""
    folder = epath.Path(folder)
    match = _NAME.fullmatch(folder.name)
    if match is None:
        raise CheckpointError(
            f"{folder} is not the folder of a step.\n"
            "Remedy: name a folder such as runs/a/100."
        )
    manifest, problem = None, None
    if match[2]:
        problem = "its save broke off"
    elif not folder.exists():
        problem = "there is no such folder"
    else:
        try:
            manifest = read_manifest(folder)
            problem = _what_is_wrong(folder)
        except CheckpointError as error:
            problem = str(error).splitlines()[0]
    return SavedStep(
        step=int(match[1]), folder=folder, problem=problem, manifest=manifest
    )


def _what_is_wrong(folder: epath.Path) -> str | None:
    if not ocp.path.step.is_checkpoint_finalized(folder):
        return "it was not committed"
    sums = read_checksums(folder)
    if sums is None:
        return "it has no checksums, which are written before a step is committed"
    problems = check_files(folder, sums, sizes_only=True)
    if problems:
        rest = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        return f"{problems[0].name} {problems[0].what}{rest}"
    return None


def _folders(directory: epath.PathLike) -> Iterator[tuple[int, epath.Path]]:
    root = epath.Path(directory)
    if not root.exists():
        return
    for folder in root.iterdir():
        match = _NAME.fullmatch(folder.name)
        if match is not None and folder.is_dir():
            yield int(match[1]), folder
