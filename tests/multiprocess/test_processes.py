"""Real processes over loopback: the same numbers, and no endless waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.multiprocess import launch

WORKER = Path(__file__).with_name("worker.py")


def run(case: str, num_processes: int) -> list[dict[str, Any]]:
    """Runs a case to its end and returns what each process printed."""
    return launch.run(WORKER, case, num_processes)


@pytest.mark.parametrize(("num_processes", "case"), [(4, "train1"), (2, "train3")])
def test_the_same_losses_as_in_one_process(case: str, num_processes: int) -> None:
    (alone,) = run(case, 1)
    for seen in run(case, num_processes):
        assert seen["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert seen["norm"] == pytest.approx(alone["norm"], rel=1e-5)


def test_offloaded_state_gives_the_same_losses() -> None:
    resting, offloaded = run("train3", 2), run("train3_offloaded", 2)
    assert offloaded == resting


def test_a_local_batch_is_refused_with_the_remedy() -> None:
    for seen in run("refuse_local_batch", 2):
        for part in ("x", "8, 24", "2 processes", "step.shard_batch"):
            assert part in seen["error"]
        assert seen["loss"] > 0


def test_a_host_state_is_placed_across_processes() -> None:
    one, two = run("placed_from_host", 2)
    (alone,) = run("placed_from_host", 1)
    assert one["loss"] == two["loss"] == pytest.approx(alone["loss"], rel=1e-5)


def test_scalars_are_read_anywhere_and_parameters_by_gather() -> None:
    one, two = run("reads", 2)
    assert one == two
    assert one["loss"] > 0
    assert one["count"] == 1
    assert "non-addressable" in one["refused"]
    assert one["shape"] == [24, 32]
    assert one["kinds"] == ["ndarray", "ndarray"]
    assert one["n"] == 7


def run_to_failure(case: str) -> list[tuple[int | None, str, str]]:
    """Runs a case in which waits end; exit status, output, errors of each process."""
    return launch.finish(launch.start(WORKER, case, 2))


def test_a_process_that_fails_does_not_hang_the_others() -> None:
    survivor, failed = run_to_failure("one_fails")
    assert failed[0] != 0
    assert "process 1 gives up" in failed[2]
    assert survivor[0] != 0
    assert "distributed service detected fatal errors" in survivor[2]


def test_one_batch_more_on_one_process_does_not_hang_it() -> None:
    first, second = run_to_failure("uneven_batches")
    assert "loss of batch 1" in first[1]
    assert "loss of batch 2" not in second[1]
    for status, _, errors in (first, second):
        assert status != 0
        assert "Barrier timed out. Id: Shutdown" in errors
