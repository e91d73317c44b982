"""A failed save says where, how much, and what is left."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from etils import epath

import jzero
from jzero.checkpoint.failures import save_error


@pytest.mark.parametrize(
    ("cause", "is_full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (ValueError("RESOURCE_EXHAUSTED: write failed: No space left on device"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
    ],
)
def test_bytes_and_path_are_named(
    tmp_path: Path, cause: Exception, is_full: bool
) -> None:
    outer = RuntimeError("the save failed")
    outer.__cause__ = cause
    error = save_error(outer, 7, 3 * 2**20, epath.Path(tmp_path))
    assert isinstance(error, jzero.CheckpointError)
    text = str(error)
    for part in ("step 7", str(tmp_path), "3.00 MiB (3145728 bytes)", "no step"):
        assert part in text
    assert ("no room" in text) == is_full == ("free" in text)


def test_a_process_that_did_not_come_is_a_matter_of_time(tmp_path: Path) -> None:
    error = save_error(TimeoutError("barrier"), 7, 1, epath.Path(tmp_path))
    assert "timeout_seconds" in str(error)
