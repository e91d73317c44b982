"""Training is killed, goes on with half of the devices, and ends as plain Flax."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from safetensors.numpy import load_file

from tests.examples.run import ROOT, environment, run_example

SMALL = ("--steps", "40", "--every", "5", "--layers", "1", "--rows", "8")
PROMPT = ("--prompt", "import ")


def kill_after(line: str, *arguments: str) -> list[str]:
    """Starts the example, kills it once it says a line, and returns what it said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.resume", *arguments],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said: list[str] = []
    for text in process.stdout:
        said.append(text)
        if text.startswith(line):
            break
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, said
    return said


def losses_of(text: str) -> dict[int, float]:
    rows = re.findall(r"^step +(\d+)  loss (\S+)$", text, re.M)
    return {int(number): float(loss) for number, loss in rows}


def test_killed_resumed_on_half_and_written_by_plain_flax(tmp_path: Path) -> None:
    where = ("--folder", str(tmp_path))
    said = kill_after("step    22", *SMALL, *where, "--devices", "8")
    assert "begins with step 0 on 8 devices\n" in said
    done = run_example("resume", *SMALL, *where, *PROMPT, "--devices", "4")
    assert done.returncode == 0, done.stderr
    first = re.search(r"begins with step (\d+) on 4 devices", done.stdout)
    # The save of step 19 may still have been under way.
    assert first is not None and int(first[1]) in (15, 20)
    before, after = losses_of("".join(said)), losses_of(done.stdout)
    assert list(after) == list(range(int(first[1]), 40))
    for number in before.keys() & after.keys():
        assert abs(before[number] - after[number]) < 2e-4
    assert after[39] < before[0] - 1.0

    written = done.stdout.partition(f"of step 39 to {tmp_path / 'model'}\n")[2]
    assert written.startswith("import ") and len(written) > 100
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    assert "params/CheckpointBlock_0/Dense_0/kernel" in tensors
    plain = run_example("generate", str(tmp_path / "model"), *PROMPT, without="jzero")
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout == written
