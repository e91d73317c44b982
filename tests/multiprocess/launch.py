"""Starting the processes of a job over loopback, and reading what they print."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 180


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def start(
    worker: Path, case: str, num_processes: int, *more: str
) -> list[subprocess.Popen[str]]:
    """Starts the processes of one case; eight devices among them."""
    address = f"127.0.0.1:{_free_port()}"
    num_devices = 8 // num_processes
    flags = f"--xla_force_host_platform_device_count={num_devices}"
    env = dict(os.environ, XLA_FLAGS=flags, JAX_PLATFORMS="cpu", PYTHONPATH=str(ROOT))
    command = [sys.executable, str(worker), case, address, str(num_processes)]
    return [
        subprocess.Popen(
            [*command, str(i), *more],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(num_processes)
    ]


def finish(
    processes: list[subprocess.Popen[str]],
) -> list[tuple[int | None, str, str]]:
    """Waits for processes; returns exit status, output, errors of each."""
    try:
        outputs = [p.communicate(timeout=LIMIT_SECONDS) for p in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, *o) for p, o in zip(processes, outputs, strict=True)]


def run(worker: Path, case: str, num_processes: int, *more: str) -> list[Any]:
    """Runs a case to its end and returns what each process printed last, as JSON."""
    ended = finish(start(worker, case, num_processes, *more))
    for status, _, errors in ended:
        assert status == 0, errors[-2000:]
    return [json.loads(out.splitlines()[-1]) for _, out, _ in ended]
