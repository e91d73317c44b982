"""Whether the files of saved steps still hold what was written into them.

Lives here: `verify`, which reads every byte of every step and compares. May import:
`checksums.py`, `steps.py`, `source.py`. Read next: `listing.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from etils import epath

from jzero.checkpoint.checksums import FileProblem, check_files, read_checksums
from jzero.checkpoint.leaves import open_leaves
from jzero.checkpoint.manifest import MANIFEST_ITEM
from jzero.checkpoint.source import Source, find_source, split_reference
from jzero.checkpoint.steps import look_at, scan_steps
from jzero.checkpoint.store import pieces_of, read_ahead
from jzero.errors import CheckpointError

__all__ = ["CheckedStep", "check_step", "verify"]

_AHEAD_BYTES = 16_000_000
_RECORD = "_CHECKPOINT_METADATA"

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStep:
    """What was found of one step.

    Attributes:
        folder: Its folder.
        step: Its number; None for arrays that were saved without one.
        is_committed: False if its save broke off, which leaves a step that nobody
            counts on.
        has_checksums: False if Orbax saved it without jzero. Its arrays were then
            read, which finds files that are missing or cut short, and no more.
        num_files: How many files were read.
        size_bytes: Their bytes.
        problems: The files that are not as they were written.
    """

    folder: epath.Path
    step: int | None
    is_committed: bool
    has_checksums: bool
    num_files: int
    size_bytes: int
    problems: tuple[FileProblem, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every byte is known to be the one that was written."""
        return self.is_committed and self.has_checksums and not self.problems


def verify(
    source: str | os.PathLike[str], *, progress: Progress | None = None
) -> tuple[CheckedStep, ...]:
    """Compares the files of saved steps with their checksums.

    Args:
        source: `runs/a` for all its steps, `runs/a@100`, or the folder of a step.
        progress: Called with the bytes done, the bytes in all, and the file.

    Returns:
        One record per step, the lowest number first.

    Raises:
        CheckpointError: There is no such step, or no step at all.
    """
    folders = _step_folders(source)
    if not folders:
        # Says what there is instead, or finds arrays that were saved without a step.
        return (_read_all(find_source(source), progress),)
    return tuple(check_step(folder, progress=progress) for folder in folders)


def check_step(folder: epath.Path, *, progress: Progress | None = None) -> CheckedStep:
    """Compares the files of one step with their checksums.

    Args:
        folder: The folder of the step.
        progress: Called with the bytes done, the bytes in all, and the file.

    Returns:
        What was found. A step without checksums has its arrays read instead.
    """
    if not folder.name.isdigit():
        return _nothing_checked(folder, is_committed=False)
    if not (folder / MANIFEST_ITEM).is_dir():
        try:
            return _read_all(find_source(folder), progress)
        except CheckpointError as error:
            return _nothing_checked(folder, problem=_first_line(error))
    try:
        sums = read_checksums(folder)
    except CheckpointError as error:
        return _nothing_checked(folder, problem=_first_line(error))
    if sums is None:
        return _nothing_checked(folder, problem="has no checksums")
    total_bytes = sum(expected.size_bytes for expected in sums.values())
    problems: list[FileProblem] = []
    done_bytes = 0
    for name, expected in sums.items():
        problems += check_files(folder, {name: expected}, sizes_only=False)
        done_bytes += expected.size_bytes
        if progress is not None:
            progress(done_bytes, total_bytes, f"{folder.name}/{name}")
    problems += _check_record(folder)
    # Files may be right and the step wrong: moved here, or not committed.
    saved = look_at(folder)
    if not problems and saved.problem is not None:
        problems.append(FileProblem(name=".", what=saved.problem))
    return CheckedStep(
        folder=folder,
        step=saved.step,
        is_committed=True,
        has_checksums=True,
        num_files=len(sums),
        size_bytes=total_bytes,
        problems=tuple(problems),
    )


def _check_record(folder: epath.Path) -> list[FileProblem]:
    """Looks whether Orbax can read its record of a step.

    It writes the time of the commit into it, after the checksums were taken.
    """
    path = folder / _RECORD
    try:
        is_record = isinstance(json.loads(path.read_text()), dict)
    except FileNotFoundError:
        return []
    except (OSError, ValueError):
        is_record = False
    return [] if is_record else [FileProblem(name=_RECORD, what="cannot be read")]


def _step_folders(source: str | os.PathLike[str]) -> tuple[epath.Path, ...]:
    """Lists the step folders that a person means."""
    directory, step = split_reference(source)
    if directory.name.isdigit() and (directory / MANIFEST_ITEM).is_dir():
        return (directory,)
    found = scan_steps(directory)
    return tuple(s.folder for s in found if step is None or s.step == step)


def _read_all(source: Source, progress: Progress | None) -> CheckedStep:
    """Reads the arrays of a step that has no checksums."""
    leaves = [leaf for leaf in open_leaves(source).leaves.values() if leaf.array]
    total_bytes = sum(leaf.size_bytes for leaf in leaves)
    done_bytes = 0
    problems: list[FileProblem] = []
    for leaf in leaves:
        assert leaf.array is not None
        pieces = pieces_of((leaf.array,), max_bytes=_AHEAD_BYTES // 4)
        try:
            for _ in read_ahead(pieces, max_bytes=_AHEAD_BYTES):
                pass
        except CheckpointError as error:
            problems.append(FileProblem(name=leaf.path, what=_first_line(error)))
        done_bytes += leaf.size_bytes
        if progress is not None:
            progress(done_bytes, total_bytes, leaf.path)
    return CheckedStep(
        folder=source.folder,
        step=source.step,
        is_committed=True,
        has_checksums=False,
        num_files=0,
        size_bytes=total_bytes,
        problems=tuple(problems),
    )


def _nothing_checked(
    folder: epath.Path, *, is_committed: bool = True, problem: str | None = None
) -> CheckedStep:
    number = folder.name.partition(".")[0]
    problems = () if problem is None else (FileProblem(name=".", what=problem),)
    return CheckedStep(
        folder=folder,
        step=int(number) if number.isdigit() else None,
        is_committed=is_committed,
        has_checksums=False,
        num_files=0,
        size_bytes=0,
        problems=problems,
    )


def _first_line(error: CheckpointError) -> str:
    return str(error).partition("\n")[0]
