"""What saving and restoring cost, beside Orbax alone on the same arrays.

    python -m benchmarks.checkpoints --mb 512 --rounds 7

Rounds interleave all cases, since the speed of a shared disk drifts; the best of each
is compared. Each case has a process of its own for its peak of memory. Writes the
table of `docs/checkpoints.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before JAX is imported: eight devices, and threads enough for them.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("PJRT_NPROC", "16")

import jax
import numpy as np
import orbax.checkpoint as ocp

import jzero
from benchmarks.document import write_part
from benchmarks.resident import peak_bytes, resident_bytes, start_peak

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "checkpoints.md"
NUM_LEAVES = 16
WIDTH = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Seconds of one save and one restore.

    Attributes:
        stall: Until `save` returns.
        save: Until the step is complete.
        restore: Until the arrays are there.
    """

    stall: float
    save: float
    restore: float


def make_state(num_mb: int) -> tuple[Any, dict[str, jax.Array]]:
    """Makes a step and a state of random float32 arrays, sharded over 8 devices."""
    step = jzero.shard_train_step(lambda state, x: (state, x.sum()))
    num_rows = num_mb * 2**20 // 4 // NUM_LEAVES // WIDTH
    rng = np.random.default_rng(0)
    shape = (num_rows, WIDTH)
    return step, step.shard(
        {f"w{i:02}": rng.standard_normal(shape, np.float32) for i in range(NUM_LEAVES)}
    )


def structs_of(state: dict[str, jax.Array]) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns shapes and places alone."""
    return {
        k: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=v.sharding)
        for k, v in state.items()
    }


def time_orbax(folder: Path, state: dict[str, jax.Array], compress: bool) -> Seconds:
    """Saves and restores with a `CheckpointManager` of Orbax."""
    handler = ocp.PyTreeCheckpointHandler(use_compression=compress)
    with ocp.CheckpointManager(folder, item_handlers=handler) as manager:
        began = time.perf_counter()
        manager.save(0, args=ocp.args.PyTreeSave(state))
        stall = time.perf_counter() - began
        manager.wait_until_finished()
        save = time.perf_counter() - began
        structs = structs_of(state)
        places = ocp.checkpoint_utils.construct_restore_args(structs)
        began = time.perf_counter()
        arguments = ocp.args.PyTreeRestore(structs, restore_args=places)
        jax.block_until_ready(manager.restore(0, args=arguments))
        restore = time.perf_counter() - began
    return Seconds(stall=stall, save=save, restore=restore)


def time_jzero(
    folder: Path, state: dict[str, jax.Array], step: Any, **settings: Any
) -> Seconds:
    """Saves and restores with a `Checkpointer`."""
    with jzero.Checkpointer(folder, step, **settings) as ckpt:
        began = time.perf_counter()
        ckpt.save(0, state)
        stall = time.perf_counter() - began
        ckpt.wait()
        save = time.perf_counter() - began
        began = time.perf_counter()
        jax.block_until_ready(ckpt.restore(0, like=structs_of(state)))
        restore = time.perf_counter() - began
    return Seconds(stall=stall, save=save, restore=restore)


def make_cases(step: Any) -> dict[str, Callable[[Path, Any], Seconds]]:
    """Returns what is compared, by name."""
    return {
        "Orbax": lambda d, s: time_orbax(d, s, compress=True),
        "Orbax, uncompressed": lambda d, s: time_orbax(d, s, compress=False),
        'jzero, `snapshot="host"`': lambda d, s: time_jzero(d, s, step),
        'jzero, `snapshot="blocking"`': lambda d, s: time_jzero(
            d, s, step, snapshot="blocking"
        ),
        "jzero, `compress=True`": lambda d, s: time_jzero(d, s, step, compress=True),
    }


def run_rounds(num_mb: int, num_rounds: int) -> dict[str, list[Seconds]]:
    """Times every case once a round."""
    step, state = make_state(num_mb)
    seconds: dict[str, list[Seconds]] = {}
    for number in range(num_rounds + 1):
        for name, run in make_cases(step).items():
            with tempfile.TemporaryDirectory() as folder:
                found = run(Path(folder) / "steps", state)
            if number:  # the first round warms up
                seconds.setdefault(name, []).append(found)
    return seconds


def peak_mb(name: str, phase: str, num_mb: int, folder: Path) -> float:
    """Runs one phase of one case in a process; returns its peak above its start."""
    command = [sys.executable, "-m", "benchmarks.checkpoints", "--peak", name]
    command += ["--phase", phase, "--mb", str(num_mb), "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def measure_peak(name: str, phase: str, num_mb: int, folder: Path) -> float:
    """Returns by how many MiB memory rose in one phase, in this process."""
    step, state = make_state(num_mb)
    structs = structs_of(state)
    if phase == "restore":
        for leaf in state.values():
            leaf.delete()
    before = resident_bytes()
    start_peak()
    if name.startswith("Orbax"):
        handler = ocp.PyTreeCheckpointHandler()
        with ocp.CheckpointManager(folder, item_handlers=handler) as manager:
            if phase == "save":
                manager.save(0, args=ocp.args.PyTreeSave(state))
            else:
                places = ocp.checkpoint_utils.construct_restore_args(structs)
                arguments = ocp.args.PyTreeRestore(structs, restore_args=places)
                jax.block_until_ready(manager.restore(0, args=arguments))
    else:
        snapshot: Any = "blocking" if "blocking" in name else "host"
        with jzero.Checkpointer(folder, step, snapshot=snapshot) as ckpt:
            if phase == "save":
                ckpt.save(0, state)
            else:
                jax.block_until_ready(ckpt.restore(0, like=structs))
    return (peak_bytes() - before) / 2**20


def make_table(
    seconds: dict[str, list[Seconds]], peaks: dict[str, list[float]], num_mb: int
) -> str:
    """Writes the figures as a table; ratios are to Orbax that compresses as much."""
    lines = [
        "| | `save` returns after | complete after | ratio | restored after | ratio "
        "| memory rises in a save by | in a restore by |",
        "|---|---|---|---|---|---|---|---|",
    ]

    def best(name: str, field: str) -> float:
        return min(getattr(s, field) for s in seconds[name])

    for name in seconds:
        save, restore = best(name, "save"), best(name, "restore")
        is_compressed = name == "Orbax" or "compress=True" in name
        peer = "Orbax" if is_compressed else "Orbax, uncompressed"
        memory = [f"{mb:.0f} MiB" for mb in peaks.get(name, [])] or ["", ""]
        lines.append(
            f"| {name} | {best(name, 'stall'):.2f} s | {save:.2f} s "
            f"({num_mb / save:.0f} MiB/s) | {save / best(peer, 'save'):.2f} | "
            f"{restore:.2f} s ({num_mb / restore:.0f} MiB/s) | "
            f"{restore / best(peer, 'restore'):.2f} | {' | '.join(memory)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peak")
    parser.add_argument("--phase")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.peak:
        print(measure_peak(options.peak, options.phase, options.mb, options.folder))
        return
    seconds = run_rounds(options.mb, options.rounds)
    peaks: dict[str, list[float]] = {}
    for name in list(seconds):
        if "ompress" in name:
            continue
        folder = Path(tempfile.mkdtemp())
        phases = ("save", "restore")
        peaks[name] = [peak_mb(name, p, options.mb, folder / "steps") for p in phases]
        shutil.rmtree(folder)
    table = make_table(seconds, peaks, options.mb)
    print(table)
    if DOCUMENT.exists():
        write_part(DOCUMENT, "saving", table)


if __name__ == "__main__":
    main()
