"""What a failed save says: which step, where, how many bytes, and what is left.

Lives here: `save_error`. May import: `steps.py`, errors. Read next: `checkpointer.py`.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator

from etils import epath

from jzero.checkpoint.steps import scan_steps
from jzero.errors import CheckpointError, format_problem
from jzero.plan.table import format_bytes

__all__ = ["save_error"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# The store's errors are texts.
_FULL_TEXTS = ("No space left", "quota exceeded", "File too large", "ENOSPC", "EFBIG")


def save_error(
    error: BaseException, step: int | None, num_bytes: int, directory: epath.Path
) -> CheckpointError:
    """Describes why a save failed.

    Args:
        error: What Orbax raised.
        step: The step that was being saved; None if it is not known.
        num_bytes: Bytes of the state as whole arrays.
        directory: The folder of the steps.
    """
    saved = [s.step for s in scan_steps(directory) if s.is_complete]
    rows = [
        ("state", f"{format_bytes(num_bytes)} ({num_bytes} bytes)"),
        ("complete", f"steps {', '.join(map(str, saved))}" if saved else "no step"),
    ]
    headline = f"saving step {step} to {directory} failed: {_first_line(error)}"
    remedy = "see the error above for the cause; the steps listed can be restored."
    if _is_full(error):
        headline = f"no room for step {step} in {directory}: {_first_line(error)}"
        free = _free_bytes(directory)
        if free is not None:
            rows.insert(1, ("free", f"{format_bytes(free)} ({free} bytes)"))
        remedy = "make room, keep fewer steps (keep=), or save elsewhere."
    elif isinstance(error, TimeoutError) or "DEADLINE_EXCEEDED" in str(error):
        remedy = (
            "look for the first error among the logs of the other processes, or raise "
            "timeout_seconds if the store is slow."
        )
    return CheckpointError(format_problem(headline, rows, remedy))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for part in error.exceptions:
                yield from _chain(part)
        error = error.__cause__ or error.__context__


def _is_full(error: BaseException) -> bool:
    return any(
        (isinstance(e, OSError) and e.errno in _FULL)
        or any(text in str(e) for text in _FULL_TEXTS)
        for e in _chain(error)
    )


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _free_bytes(directory: epath.Path) -> int | None:
    try:
        return shutil.disk_usage(directory).free
    except (OSError, ValueError):
        return None  # a remote store does not tell
