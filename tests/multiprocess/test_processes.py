"""Real processes over loopback: the same numbers, and no endless waits."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).with_name("worker.py")
ROOT = WORKER.parents[2]
LIMIT_SECONDS = 180


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def start(case: str, num_processes: int) -> list[subprocess.Popen[str]]:
    """Starts the processes of one case; eight devices among them."""
    address = f"127.0.0.1:{_free_port()}"
    num_devices = 8 // num_processes
    flags = f"--xla_force_host_platform_device_count={num_devices}"
    env = dict(os.environ, XLA_FLAGS=flags, JAX_PLATFORMS="cpu", PYTHONPATH=str(ROOT))
    return [
        subprocess.Popen(
            [sys.executable, str(WORKER), case, address, str(num_processes), str(i)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(num_processes)
    ]


def run(case: str, num_processes: int) -> list[dict[str, Any]]:
    """Runs a case to its end and returns what each process printed."""
    processes = start(case, num_processes)
    try:
        outputs = [p.communicate(timeout=LIMIT_SECONDS) for p in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors[-2000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


@pytest.mark.parametrize("case", ("train1", "train3"))
@pytest.mark.parametrize("num_processes", (2, 4))
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
    processes = start(case, 2)
    try:
        outputs = [p.communicate(timeout=LIMIT_SECONDS) for p in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, *o) for p, o in zip(processes, outputs, strict=True)]


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
