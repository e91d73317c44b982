"""A failed save says where, how much, and what is left."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from etils import epath

import jzero
from jzero.checkpoint.failures import save_error
from tests.jzero.checkpoint.small import make_step


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


# The store's other writes may still report to an event loop that Orbax has closed.
orphaned_writes = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
def limit_bytes() -> Iterator[Callable[[int], None]]:
    """Sets how long a file may get, as if the disk were full from there on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@orphaned_writes
@pytest.mark.parametrize("snapshot", ("host", "blocking"))
def test_no_room_leaves_earlier_steps_and_later_ones_alone(
    tmp_path: Path, snapshot: Any, limit_bytes: Callable[[int], None]
) -> None:
    step = make_step()
    state = step.shard({"w": np.random.default_rng(0).normal(size=(1024, 256))})
    with jzero.Checkpointer(tmp_path, step, keep=1, snapshot=snapshot) as ckpt:
        ckpt.save(0, state)
        ckpt.wait()
        limit_bytes(2**18)
        with pytest.raises(jzero.CheckpointError) as error:
            ckpt.save(1, state)
            ckpt.save(2, state)  # where the error of the one in flight comes up
        limit_bytes(resource.RLIM_INFINITY)
        text = str(error.value)
        for part in ("no room for step 1", str(tmp_path), "1048576 bytes", "steps 0"):
            assert part in text
        assert ckpt.latest_complete_step == 0
        ckpt.restore(like=state)
        ckpt.save(1, state)
    assert [p.name for p in tmp_path.iterdir()] == ["1"]


@orphaned_writes
def test_the_error_of_a_save_in_flight_comes_up_in_any_later_call(
    tmp_path: Path, limit_bytes: Callable[[int], None]
) -> None:
    step = make_step()
    state = step.shard({"w": np.random.default_rng(0).normal(size=(1024, 256))})
    ckpt = jzero.Checkpointer(tmp_path, step)
    for call in (
        ckpt.wait,
        lambda: ckpt.restore(like=state),
        lambda: ckpt.restore_or_init(lambda: {"w": np.zeros((1024, 256))}),
        ckpt.close,
    ):
        limit_bytes(2**18)
        ckpt.save(1, state)
        with pytest.raises(jzero.CheckpointError, match="no room for step 1"):
            call()
        limit_bytes(resource.RLIM_INFINITY)
