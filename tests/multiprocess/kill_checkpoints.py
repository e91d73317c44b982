"""Kills a saving job again and again, and looks at what is left.

    python -m tests.multiprocess.kill_checkpoints --kills 100 --processes 2

Each time the job must restore the newest step that it had known to be saved, or a
later one, whole. The suite does a few kills; this script does as many as wanted.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

WORKER = Path(__file__).with_name("kill_worker.py")
ROOT = WORKER.parents[2]
LIMIT_SECONDS = 120.0


class Job:
    """The processes of one run, and the lines that they print.

    Args:
        folder: where they save.
        num_processes: how many there are, with eight devices among them.
    """

    def __init__(self, folder: Path, num_processes: int) -> None:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{server.getsockname()[1]}"
        flags = f"--xla_force_host_platform_device_count={8 // num_processes}"
        env = dict(os.environ, XLA_FLAGS=flags, PYTHONPATH=str(ROOT))
        env |= {"JAX_PLATFORMS": "cpu", "PJRT_NPROC": "16"}
        command = [sys.executable, str(WORKER), str(folder), address]
        # A pipe that nobody reads would fill up.
        self.errors = (folder.parent / f"errors-{folder.name}.txt").open("w+")
        self.lines: list[str] = []
        self.is_over = False
        self.changed = threading.Condition()
        self.processes = [
            subprocess.Popen(
                [*command, str(num_processes), str(i)],
                env=env,
                stdout=subprocess.PIPE if i == 0 else subprocess.DEVNULL,
                stderr=self.errors,
                text=True,
            )
            for i in range(num_processes)
        ]
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        out = self.processes[0].stdout
        assert out is not None
        with out:
            for line in out:
                with self.changed:
                    self.lines.append(line.strip())
                    self.changed.notify_all()
        with self.changed:
            self.is_over = True
            self.changed.notify_all()

    def _steps(self, word: str) -> list[int]:
        found = (re.fullmatch(rf"{word} (-?\d+)", line) for line in self.lines)
        return [int(match[1]) for match in found if match]

    def wait_for(self, word: str) -> int:
        """Waits until the job has "restored", or is "saving"; returns the step."""
        with self.changed:
            self.changed.wait_for(
                lambda: self._steps(word) or self.is_over, LIMIT_SECONDS
            )
            found = self._steps(word)
        if not found:
            self.errors.seek(0)
            raise AssertionError(f"not {word}: {self.errors.read()[-3000:]}")
        return found[0]

    def kill(self, rng: random.Random) -> int:
        """Kills the processes one after the other; returns the last step saved."""
        for process in rng.sample(self.processes, len(self.processes)):
            process.kill()
            time.sleep(rng.uniform(0.0, 0.1))
        for process in self.processes:
            process.wait()
        self.reader.join()
        self.errors.close()
        return max(self._steps("saved"), default=-1)


def run(num_kills: int, num_processes: int, folder: Path, seed: int = 0) -> list[int]:
    """Kills a job at random moments of its saves.

    Returns:
        The step that was restored after each kill.

    Raises:
        AssertionError: A step that was saved is gone, or a state is torn.
    """
    rng = random.Random(seed)
    known, restored = -1, []
    for number in range(num_kills + 1):
        job = Job(folder, num_processes)
        try:
            step = job.wait_for("restored")
            assert step >= known, f"kill {number}: step {known} was saved, got {step}"
            restored.append(step)
            print(f"kill {number}: step {step}", file=sys.stderr, flush=True)
            job.wait_for("saving")
            time.sleep(rng.uniform(0.0, 0.8 * num_processes))
        finally:
            known = max(known, job.kill(rng))
    return restored[1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps = Path(folder) / "steps"
        restored = run(options.kills, options.processes, steps, options.seed)
    print(f"{options.kills} kills of {options.processes} process(es): restored")
    print(*restored)


if __name__ == "__main__":
    main()
