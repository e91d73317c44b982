"""Which step to restore: the same one on every process, and only a complete one.

Lives here: `find_step`. May import: `steps.py`, `processes.py`, errors. Read next:
`restoring.py`.
"""

from __future__ import annotations

import warnings

import jax
from etils import epath

from jzero.checkpoint.processes import Meeting
from jzero.checkpoint.steps import (
    SavedStep,
    latest_complete,
    look_at,
    scan_steps,
    step_folder,
)
from jzero.errors import CheckpointError, CheckpointWarning, format_problem

__all__ = ["find_step"]


def find_step(
    directory: epath.Path, step: int | None, meeting: Meeting, call: str
) -> SavedStep | None:
    """Finds the step to restore.

    Args:
        directory: The folder of the steps.
        step: The one asked for; None takes the newest complete one.
        meeting: Where the processes agree.
        call: The user's call, for messages.

    Returns:
        The step, or None if none was asked for and none is complete.

    Raises:
        CheckpointError: The step asked for is not there or not complete.

    Warns:
        CheckpointWarning: None was asked for, and there are incomplete ones.
    """
    number = step
    if step is None and jax.process_index() == 0:
        newest = latest_complete(directory)
        number = None if newest is None else newest.step
    number = meeting.agree(number, call)
    if step is None and jax.process_index() == 0:
        _warn_of_incomplete(directory)
    if number is None:
        return None
    found = look_at(step_folder(directory, number))
    if not found.is_complete:
        raise CheckpointError(
            f"cannot restore step {number} of {directory}: {found.problem}.\n"
            f"Remedy: {_what_there_is(directory)}"
        )
    return found


def _warn_of_incomplete(directory: epath.Path) -> None:
    steps = [s for s in scan_steps(directory) if not s.is_complete]
    if steps:
        warnings.warn(
            format_problem(
                f"left out of {directory}, as not complete:",
                [(s.folder.name, s.problem or "") for s in steps],
                "none is needed; saving such a step again replaces it.",
            ),
            CheckpointWarning,
            stacklevel=4,
        )


def _what_there_is(directory: epath.Path) -> str:
    steps = [s.step for s in scan_steps(directory) if s.is_complete]
    if not steps:
        return "no complete step is there; name another folder."
    return f"restore one of the complete steps {', '.join(map(str, steps))}."
