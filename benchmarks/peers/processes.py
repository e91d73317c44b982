"""Starting the processes of one job, and reading what they report."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
from pathlib import Path

from benchmarks.peers.results import Result, parse
from benchmarks.peers.worker import Job

ROOT = Path(__file__).resolve().parents[2]
WORKERS = {
    "jzero": "jzero_worker",
    "fsdp2": "torch_worker",
    "deepspeed": "torch_worker",
}
LIMIT_SECONDS = 300


class JobError(RuntimeError):
    """A process of a job failed; the text ends with what it printed last."""


def free_port() -> int:
    """Returns a port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment() -> dict[str, str]:
    """Returns the variables of a worker: one thread, CPUs, nothing to compile."""
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "DS_ACCELERATOR": "cpu",
        "DS_BUILD_OPS": "0",
    }


def run_job(job: Job, python: str | Path) -> Result:
    """Runs all processes of a job to their end.

    Args:
      job: of rank 0; the others get the same with their own rank.
      python: the interpreter of the framework's environment.

    Raises:
      JobError: one of them failed, or took longer than `LIMIT_SECONDS`.
    """
    job = dataclasses.replace(job, port=free_port())
    worker = f"benchmarks.peers.{WORKERS[job.case.framework]}"
    running = [
        subprocess.Popen(
            [str(python), "-m", worker, dataclasses.replace(job, rank=i).text()],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(job.num_processes)
    ]
    try:
        outputs = [p.communicate(timeout=LIMIT_SECONDS)[0] for p in running]
    except subprocess.TimeoutExpired:
        raise JobError(f"{job.case} took over {LIMIT_SECONDS} s") from None
    finally:
        for process in running:
            process.kill()
            process.wait()
    for process, output in zip(running, outputs, strict=True):
        if process.returncode:
            raise JobError(f"{job.case} failed:\n{output[-3000:]}")
    return parse(outputs)
