"""What consolidating costs, beside DeepSpeed's `zero_to_fp32`.

    python -m benchmarks.consolidate                 # both, into docs/checkpoints.md
    python -m benchmarks.consolidate --without-peers # jzero alone, terminal only

Both checkpoints hold one step of AdamW for one GPT: a float32 master and two moments
of each parameter, 12 bytes. Every run is a process of its own; rounds are interleaved,
since machines drift. The result is written once and removed again.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax.traverse_util import unflatten_dict
from jax.sharding import Mesh

import jzero
from benchmarks.document import write_part
from benchmarks.peers import environment, weights
from benchmarks.peers.__main__ import prepare
from benchmarks.peers.cases import Case, Size
from benchmarks.peers.processes import ROOT, free_port
from benchmarks.peers.processes import environment as worker_environment
from benchmarks.peers.table import cpu_name
from benchmarks.peers.worker import Job

DOCUMENT = ROOT / "docs" / "checkpoints.md"
FOLDER = ROOT / "out" / "consolidate"
PART = "consolidate"
SIZE = Size(width=768, num_layers=12, num_heads=12, rows=1)
NUM_DEVICES = 8
LIMIT_SECONDS = 600

# Runs a module or a file as a program, and says what it needed: seconds, seconds of
# processors, and the peak of resident memory, of which importing is a part.
MEASURE = """
import json, runpy, sys, time
from pathlib import Path
name, *sys.argv[1:] = sys.argv[1:]
start, cpu_start = time.perf_counter(), time.process_time()
try:
    run = runpy.run_path if name.endswith(".py") else runpy.run_module
    run(name, run_name="__main__")
except SystemExit as stopped:
    if stopped.code:
        raise
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
lines = Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) * 1024 for line in lines if "VmHWM" in line)
print("MEASURED", json.dumps({"seconds": seconds, "cpu": cpu, "peak": peak}))
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One way to consolidate a checkpoint.

    Attributes:
        name: What the table calls it.
        python: The interpreter.
        command: A module or a file, and its arguments without the output folder.
        tail: Arguments behind the output folder.
    """

    name: str
    python: Path
    command: tuple[str, ...]
    tail: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one run of a tool needed.

    Attributes:
        seconds: From its first import to its end.
        cpu_seconds: Of processors, over all threads.
        peak_bytes: The peak of resident memory.
        written_bytes: What it wrote.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    written_bytes: int


def save_with_jzero(run: Path, size: Size, num_devices: int) -> None:
    """Saves a state as one step of training leaves it, from so many devices."""

    def create() -> dict[str, Any]:
        key = jax.random.key(0)
        flat = {
            tuple(name.split("/")): jax.random.normal(jax.random.fold_in(key, i), shape)
            for i, (name, shape) in enumerate(weights.shapes(size).items())
        }
        params = unflatten_dict(flat)
        return {"params": params, "opt_state": optax.adamw(1e-3).init(params)}

    def train_step(state: Any, x: jax.Array) -> Any:
        params = jax.tree.map(lambda leaf: leaf - x.mean(), state["params"])
        return {**state, "params": params}, x.sum()

    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("data",))
    step = jzero.shard_train_step(train_step, stage=3, mesh=mesh)
    with jzero.Checkpointer(run, step, snapshot="blocking") as ckpt:
        ckpt.save(1, step.init(create))


def save_with_deepspeed(folder: Path, size: Size, python: Path) -> None:
    """Saves the same model from two processes at stage 3, in 16 bits with masters."""
    prepare(folder / "inputs", size)
    job = Job(
        case=Case(dtype="bfloat16", framework="deepspeed", stage=3),
        size=size,
        rank=0,
        num_processes=2,
        port=free_port(),
        num_steps=1,
        num_warm=0,
        folder=folder / "inputs",
    )
    running = [
        subprocess.Popen(
            [
                *(str(python), "-m", "benchmarks.peers.deepspeed_checkpoint"),
                *(dataclasses.replace(job, rank=rank).text(), str(folder / "saved")),
            ],
            cwd=ROOT,
            env=worker_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [p.communicate(timeout=LIMIT_SECONDS)[0] for p in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    for process, output in zip(running, outputs, strict=True):
        if process.returncode:
            raise RuntimeError(f"DeepSpeed could not save:\n{output[-3000:]}")


def jzero_tools(run: Path, run_of_one: Path) -> list[Tool]:
    """Returns the ways of jzero; the second folder was saved by one device."""
    start = ("jzero", "ckpt", "consolidate", str(run))
    here = Path(sys.executable)
    return [
        Tool(name="`jzero ckpt consolidate`", python=here, command=start),
        Tool(
            name="the same, checksums not compared",
            python=here,
            command=start,
            tail=("--no-check",),
        ),
        Tool(
            name="the same, in bfloat16",
            python=here,
            command=start,
            tail=("--dtype", "bfloat16"),
        ),
        Tool(
            name="the same, optimizer state too",
            python=here,
            command=start,
            tail=("--what", "all"),
        ),
        Tool(
            name="the same, optimizer state too, saved by one device",
            python=here,
            command=(*start[:-1], str(run_of_one)),
            tail=("--what", "all"),
        ),
    ]


def deepspeed_tools(saved: Path, python: Path) -> list[Tool]:
    """Returns the ways of DeepSpeed: the script that it leaves with a checkpoint."""
    script = (str(saved / "zero_to_fp32.py"), str(saved))
    return [
        Tool(
            name="`zero_to_fp32.py --safe_serialization`",
            python=python,
            command=script,
            tail=("--safe_serialization",),
        ),
        Tool(name="`zero_to_fp32.py`", python=python, command=script),
    ]


def measure(tool: Tool, out: Path) -> Measured:
    """Runs a tool once.

    Args:
        tool: The tool.
        out: The folder to write, which is removed again.

    Raises:
        RuntimeError: It failed.
    """
    shutil.rmtree(out, ignore_errors=True)
    env = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [str(tool.python), "-c", MEASURE, *tool.command, str(out), *tool.tail],
        cwd=ROOT,
        env=env | {"DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    if done.returncode:
        raise RuntimeError(f"{tool.name}:\n{done.stderr[-3000:]}")
    line = done.stdout.rpartition("MEASURED ")[2]
    seen = json.loads(line)
    written_bytes = _folder_bytes(out)
    shutil.rmtree(out)
    return Measured(
        seconds=seen["seconds"],
        cpu_seconds=seen["cpu"],
        peak_bytes=seen["peak"],
        written_bytes=written_bytes,
    )


def render(rounds: dict[str, list[Measured]], idle_bytes: int) -> str:
    """Writes the table: medians of the rounds, and the highest peak.

    Args:
        rounds: What every run of each tool needed.
        idle_bytes: Resident memory of jzero's command when it has imported all.
    """
    lines = [
        "| | written | seconds | GB/s | CPU seconds | peak memory |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, runs in rounds.items():
        seconds = statistics.median(run.seconds for run in runs)
        written_bytes = runs[0].written_bytes
        lines.append(
            f"| {name} | {written_bytes / 1e6:.0f} MB | {seconds:.2f} | "
            f"{written_bytes / seconds / 1e9:.2f} | "
            f"{statistics.median(run.cpu_seconds for run in runs):.2f} | "
            f"{max(run.peak_bytes for run in runs) / 1e6:.0f} MB |"
        )
    lines.append("")
    lines.append(
        f"Of jzero's peaks, {idle_bytes / 1e6:.0f} MB are Python with JAX, Orbax and "
        "TensorStore imported."
    )
    return "\n".join(lines)


def conditions(checkpoint_bytes: dict[str, int], num_rounds: int, load: float) -> str:
    """Says what the numbers were measured on, and how busy the machine was."""
    num_params = sum(map(prod, weights.shapes(SIZE).values()))
    sizes = ", ".join(f"{n} {b / 1e6:.0f} MB" for n, b in checkpoint_bytes.items())
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("jax", "orbax-checkpoint", "tensorstore", "safetensors")
    )
    return (
        f"{datetime.date.today().isoformat()}, {cpu_name()}, {os.cpu_count()} cores, "
        f"a load average of up to {load:.0f}. "
        f"{num_params / 1e6:.2f} M parameters; checkpoints on disk: {sizes}. "
        f"{versions}. {num_rounds} interleaved rounds, medians; the highest peak. "
        "Seconds hold imports and, for jzero, waiting until the disk has all. Files "
        "that are read may be in the page cache, for all alike."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--peers-python", default=sys.executable)
    settings = parser.parse_args(arguments)
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    shutil.rmtree(FOLDER, ignore_errors=True)
    save_with_jzero(FOLDER / "run", SIZE, NUM_DEVICES)
    save_with_jzero(FOLDER / "run-1", SIZE, 1)
    sizes = {"jzero": _folder_bytes(FOLDER / "run")}
    tools = jzero_tools(FOLDER / "run", FOLDER / "run-1")
    if not settings.without_peers:
        python = environment.ensure(ROOT / "out" / "peers-venv", settings.peers_python)
        # The script imports both, and DeepSpeed does not install them.
        environment.add(python, "huggingface-hub", "safetensors")
        save_with_deepspeed(FOLDER / "deepspeed", SIZE, python)
        saved = FOLDER / "deepspeed" / "saved"
        sizes["DeepSpeed"] = _folder_bytes(saved)
        tools += deepspeed_tools(saved, python)
    rounds: dict[str, list[Measured]] = {tool.name: [] for tool in tools}
    load = 0.0
    for _ in range(settings.rounds):
        load = max(load, os.getloadavg()[0])
        for tool in tools:
            rounds[tool.name].append(measure(tool, FOLDER / "out"))
            print(tool.name, rounds[tool.name][-1], flush=True)
    idle = measure_idle()
    text = f"{conditions(sizes, settings.rounds, load)}\n\n{render(rounds, idle)}"
    print(text)
    if not settings.without_peers:
        write_part(DOCUMENT, PART, text)


def measure_idle() -> int:
    """Returns the memory of a command that does next to nothing."""
    command = ("jzero", "ckpt", "ls", str(FOLDER / "run"))
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.rpartition("MEASURED ")[2])["peak"]


def _folder_bytes(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


if __name__ == "__main__":
    main()
