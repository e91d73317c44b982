"""What is in a folder of checkpoints.

Lives here: `list_checkpoints`, which reads records and lengths of files, and no data.
May import: `steps.py`, `source.py`. Read next: `jzero/cli/ckpt.py`, which prints it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from etils import epath

from jzero.checkpoint.checksums import files_below
from jzero.checkpoint.manifest import Manifest
from jzero.checkpoint.source import find_foreign, find_source, split_reference
from jzero.checkpoint.steps import SavedStep, scan_steps
from jzero.errors import CheckpointError

__all__ = ["ListedStep", "list_checkpoints"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedStep:
    """One step of a folder.

    Attributes:
        folder: Its folder.
        step: Its number; None for arrays that were saved without one.
        problem: Why it is not complete; None if it is.
        size_bytes: The bytes of its files.
        manifest: What jzero wrote about it: stage, devices, versions, leaves. None
            where that cannot be read, and for steps that something else saved.
        is_foreign: Whether Orbax saved it without jzero.
    """

    folder: epath.Path
    step: int | None
    problem: str | None
    size_bytes: int
    manifest: Manifest | None
    is_foreign: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether the step can be loaded."""
        return self.problem is None


def list_checkpoints(directory: str | os.PathLike[str]) -> tuple[ListedStep, ...]:
    """Lists the steps of a folder, complete or not.

    Args:
        directory: `runs/a`, or `runs/a@100` for one step.

    Returns:
        One record per step folder, the lowest number first.

    Raises:
        CheckpointError: There is no such folder, or nothing is saved in it.
    """
    folder, step = split_reference(directory)
    steps = [s for s in scan_steps(folder) if step is None or s.step == step]
    if not steps:
        # Raises what is wrong, or finds arrays that were saved without a step.
        found = find_source(directory)
        return (
            ListedStep(
                folder=found.folder,
                step=found.step,
                problem=None,
                size_bytes=_size_bytes(found.folder),
                manifest=found.manifest,
                is_foreign=found.manifest is None,
            ),
        )
    return tuple(_listed(saved) for saved in steps)


def _listed(saved: SavedStep) -> ListedStep:
    problem, is_foreign = saved.problem, False
    if saved.manifest is None:
        try:
            is_foreign = find_foreign(saved.folder, saved.folder.name) is not None
        except CheckpointError as error:
            problem = str(error).partition("\n")[0]
    return ListedStep(
        folder=saved.folder,
        step=saved.step,
        problem=None if is_foreign else problem,
        size_bytes=_size_bytes(saved.folder),
        manifest=saved.manifest,
        is_foreign=is_foreign,
    )


def _size_bytes(folder: epath.Path) -> int:
    return sum(path.stat().length for _, path in files_below(folder))
