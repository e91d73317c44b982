"""What the workers of all frameworks have in common: arguments, timing, the report.

Imports no framework: the torch worker runs in an environment without jzero.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import weights
from benchmarks.peers.cases import Case, Size
from benchmarks.peers.data import batch

PREFIX = "PEERS "


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a worker is asked to do.

    Attributes:
        case: The framework, the stage and the dtype.
        size: Of the model and the batch.
        rank: Which of the processes this is.
        num_processes: How many there are.
        port: Of rank 0, on the loopback interface.
        num_steps: How many to take.
        num_warm: How many of them count neither as time nor as memory.
        folder: Where the driver wrote tokens and weights.
    """

    case: Case
    size: Size
    rank: int
    num_processes: int
    port: int
    num_steps: int
    num_warm: int
    folder: Path

    def text(self) -> str:
        """Returns the job as the one argument of a worker."""
        return json.dumps(dataclasses.asdict(self), default=str)

    @classmethod
    def parse(cls, text: str) -> Job:
        """Reads what `text` wrote."""
        fields = json.loads(text)
        fields["case"] = Case(**fields["case"])
        fields["size"] = Size(**fields["size"])
        fields["folder"] = Path(fields["folder"])
        return cls(**fields)

    def batch(self, tokens: np.ndarray, step: int) -> dict[str, np.ndarray]:
        """Returns this process's rows in one step."""
        return batch(
            tokens,
            step,
            rows=self.size.rows,
            num_tokens=self.size.num_tokens,
            part=self.rank,
            parts=self.num_processes,
        )

    def tokens(self) -> np.ndarray:
        """Returns the text, int32 of shape (N,)."""
        return np.load(self.folder / "tokens.npy")

    def weights(self) -> dict[str, np.ndarray]:
        """Returns the initial weights by path."""
        return weights.load(self.folder / "weights.npz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """A framework, ready to train.

    Attributes:
        step: Takes a batch of numpy arrays, returns once the step is over, with its
            loss (of this process's rows, or of all).
        state_bytes: Counts what this process holds between steps.
        versions: Of the packages that matter.
    """

    step: Callable[[dict[str, np.ndarray]], float]
    state_bytes: Callable[[], int]
    versions: dict[str, str]


def use_one_core(rank: int) -> None:
    """Ties this process to a core of its own; thread pools then have one thread."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def reset_peak() -> None:
    """Forgets the peak of resident memory, so that start and compiler do not count."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Returns the peak of this process's resident memory since `reset_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peak) * 1024


def report(job: Job, trainer: Trainer) -> dict[str, Any]:
    """Trains, and returns what was seen, as plain data."""
    tokens = job.tokens()
    losses: list[float] = []
    seconds: list[float] = []
    cpu_seconds: list[float] = []
    for i in range(job.num_steps):
        if i == job.num_warm:
            reset_peak()
        data = job.batch(tokens, i)
        start, cpu_start = time.perf_counter(), time.process_time()
        losses.append(trainer.step(data))
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    return {
        "case": dataclasses.asdict(job.case),
        "rank": job.rank,
        "losses": losses,
        "seconds": seconds[job.num_warm :],
        "cpu_seconds": cpu_seconds[job.num_warm :],
        "state_bytes": trainer.state_bytes(),
        "peak_bytes": peak_bytes(),
        "versions": trainer.versions,
    }


def run(build: Callable[[Job], Trainer]) -> None:
    """Runs the job of the command line and prints its report as one line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    job = Job.parse(parser.parse_args().job)
    use_one_core(job.rank)
    line = PREFIX + json.dumps(report(job, build(job)))
    # One write, line end included: frameworks print to the same stream.
    sys.stdout.write(f"\n{line}\n")
    sys.stdout.flush()
