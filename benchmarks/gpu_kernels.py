"""GPU kernels: checked against float64, then timed beside XLA, torch and a copy.

    python -m benchmarks.gpu_kernels                  # on an NVIDIA GPU: minutes
    python -m benchmarks.gpu_kernels --dry-run        # anywhere: all of it, tiny
    python -m benchmarks.gpu_kernels --checks         # the checks alone

The work is done by a process of its own. What fails is named and passed over, and if
it takes the process along, or does not end, another goes on behind it: one kernel
does not keep the rest from being reported. Every line is printed as soon as it is
known. A kernel that is no faster than what XLA fuses by itself is named as such: then
the reference stays the default for it. The last line, and the exit status, say whether
all went well.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_times import COPY, PAIRS, Timing
from benchmarks.gpu_worker import LOST, work

__all__ = ["Results", "main", "render"]

ROOT = Path(__file__).parents[1]
ITEM_SECONDS = 90.0
"""What may take longer is given up: a kernel that hangs."""


class Results:
    """What is known so far, from one process or several.

    Attributes:
        attempted: Names of what was started.
        failed: Names of what failed.
        timings: What was timed.
        device: On what.
        is_done: Whether all was attempted.
    """

    def __init__(self) -> None:
        self.attempted: list[str] = []
        self.failed: list[str] = []
        self.timings: list[Timing] = []
        self.device = "an unknown device"
        self.is_done = False
        self._running: str | None = None

    def take(self, record: dict[str, Any]) -> None:
        """Takes one record of a process, and prints what it says."""
        self.is_done = "end" in record
        self.device = record.get("device", self.device)
        if "start" in record:
            self._running = record["start"]
            self.attempted.append(record["start"])
        if "name" not in record:
            return
        self._running, name = None, record["name"]
        if "error" in record:
            self._fail(name, record["error"])
        elif "line" in record:
            print(f"{name}: {record['line']}", flush=True)
        else:
            self.timings.append(Timing(**record))
            print(f"{name}: {record['seconds'] * 1e3:.3f} ms", flush=True)

    def lose(self, why: str) -> None:
        """Notes that a process is gone, and what it was at."""
        if self._running is not None:
            self._fail(self._running, why)
            self._running = None

    def _fail(self, name: str, why: str) -> None:
        self.failed.append(name)
        print(f"{name}: FAILED, {why}", flush=True)


def render(timings: Sequence[Timing], device: str) -> str:
    """Returns the table, and which kernels pay."""
    found = {t.name: t for t in timings}
    best = found[COPY].gb_per_second if COPY in found else None
    lines = [
        f"On {device}:",
        "",
        "| what | ms | GB/s | of the copy |",
        "|---|---|---|---|",
    ]
    # What belongs together, which was not timed in a row.
    for t in sorted(timings, key=lambda t: _place(t.name)):
        share = "-" if best is None else f"{100 * t.gb_per_second / best:.0f} %"
        lines.append(
            f"| {t.name} | {t.seconds * 1e3:.3f} | {t.gb_per_second:.0f} | {share} |"
        )
    for name in PAIRS:
        kernel = found.get(f"{name}, kernel")
        others = [found[o] for o in (f"{name}, XLA", f"{name}, optax") if o in found]
        if kernel is None or not others:
            continue
        part = kernel.seconds / min(o.seconds for o in others)
        verdict = "it pays" if part < 1 else "no faster; the reference stays"
        lines.append(f"\n{name}: the kernel takes {part:.2f} of XLA's time: {verdict}.")
    return "\n".join(lines)


def _place(name: str) -> int:
    pair = name.rsplit(", ", 1)[0]
    return PAIRS.index(pair) if pair in PAIRS else -1


def _records(
    arguments: Sequence[str], attempted: Sequence[str], end: float
) -> Iterator[dict[str, Any] | str]:
    """Runs a process and yields its records; last, if it is lost, the reason."""
    command = [sys.executable, "-m", "benchmarks.gpu_kernels", *arguments]
    command += ["--worker", json.dumps(attempted)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while True:
            left = min(ITEM_SECONDS, end - time.monotonic())
            line = lines.get(timeout=max(left, 0.0))
            if line is None:
                break
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                print(line, end="", flush=True)
        status = process.wait()
        if status not in (0, LOST):
            yield f"the process ended with status {status}"
    except queue.Empty:
        yield "it took too long"
    finally:
        process.kill()
        process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--checks", action="store_true", help="check, and time nothing")
    parser.add_argument("--dry-run", action="store_true", help="all of it, tiny")
    parser.add_argument("--only", default="", help="a pattern of what to do")
    parser.add_argument("--elements", type=int, help="parameters that are timed")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--budget", type=float, default=270.0, help="seconds")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        return work(options, options.worker)
    given = list(sys.argv[1:] if arguments is None else arguments)
    given += ["--seed", str(options.seed)]
    print(f"seed {options.seed}", flush=True)
    results, end = Results(), time.monotonic() + options.budget
    while not results.is_done and time.monotonic() < end:
        num_attempted = len(results.attempted)
        for record in _records(given, results.attempted, end):
            if isinstance(record, str):
                results.lose(record)
            else:
                results.take(record)
        if len(results.attempted) == num_attempted and not results.is_done:
            break  # it did not even start
    if results.timings:
        print(render(results.timings, results.device))
    if not results.is_done:
        results.failed.append("what comes behind, which was not run")
    print("failed: " + (", ".join(results.failed) or "nothing"), flush=True)
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
