"""What memory restoring needs beside the state, beside Orbax alone.

    python -m benchmarks.restoring --mb 512

States of many small leaves, of a few large ones, and with one leaf of half the bytes;
each is saved by some number of devices and restored onto another, in a process of its
own, whose resident memory is watched by the kernel. Writes a table into
`docs/checkpoints.md`.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Before JAX is imported: eight devices, and threads enough for them.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("PJRT_NPROC", "16")

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh

import jzero
from benchmarks.document import write_part
from benchmarks.resident import peak_bytes, resident_bytes, start_peak

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "checkpoints.md"
WIDTH = 1024
TINY_MB = 8
WAYS = ("Orbax", "jzero")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A state, and who saves and restores it.

    Attributes:
        name: What the table calls the state.
        parts: How many leaves of which share of the bytes each.
        saved_by: How many devices save it.
        restored_by: How many devices restore it.
    """

    name: str
    parts: tuple[tuple[int, float], ...]
    saved_by: int = 8
    restored_by: int = 8


MANY = ("2048 small leaves", ((2048, 1 / 2048),))
FEW = ("8 large leaves", ((8, 1 / 8),))
HALF = ("one leaf of half the bytes, 64 more", ((1, 1 / 2), (64, 1 / 128)))
CASES = (
    *(Case(name=name, parts=parts) for name, parts in (MANY, FEW, HALF)),
    Case(name=FEW[0], parts=FEW[1], saved_by=1),
    Case(name=HALF[0], parts=HALF[1], saved_by=1),
    Case(name=FEW[0], parts=FEW[1], restored_by=1),
    Case(name=HALF[0], parts=HALF[1], restored_by=1),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What one restore needed.

    Attributes:
        seconds: Until all arrays were there.
        extra_bytes: The peak of resident memory above what was there before and the
            arrays themselves.
    """

    seconds: float
    extra_bytes: int


def shapes_of(case: Case, num_mb: int) -> dict[str, tuple[int, int]]:
    """Returns the shapes of a state's leaves, which are float32."""
    shapes: dict[str, tuple[int, int]] = {}
    for count, share in case.parts:
        num_rows = int(num_mb * 2**20 * share) // 4 // WIDTH
        for _ in range(count):
            shapes[f"w{len(shapes):04}"] = (num_rows, WIDTH)
    return shapes


def make_step(num_devices: int) -> Any:
    """Makes a step over some devices, which shards leaves of any size."""
    return jzero.shard_train_step(
        lambda state, x: (state, x.sum()),
        mesh=Mesh(np.array(jax.devices()[:num_devices]), ("data",)),
        config=jzero.ZeroConfig(persistence_threshold=0),
    )


def save(case: Case, num_mb: int, folder: Path) -> None:
    """Saves a state of random numbers, and a tiny one beside it."""
    rng = np.random.default_rng(0)
    step = make_step(case.saved_by)
    for place, size_mb in ((folder, num_mb), (tiny(folder), TINY_MB)):
        state = {
            name: rng.standard_normal(shape, np.float32)
            for name, shape in shapes_of(case, size_mb).items()
        }
        with jzero.Checkpointer(place, step, snapshot="blocking") as ckpt:
            ckpt.save(0, step.shard(state))


def restore(case: Case, num_mb: int, folder: Path, way: str) -> Restored:
    """Restores in this process, and looks at its memory meanwhile."""
    step = make_step(case.restored_by)
    run = restore_with_orbax if way == "Orbax" else restore_with_jzero
    # What is loaded once, however large the state is, is no part of a restore.
    run(tiny(folder), step, structs_of(case, TINY_MB, step))
    # Nor is the compiler, which the training step needs in any case.
    jax.block_until_ready(jax.jit(lambda x: x.at[1:3].add(2).sum())(jnp.ones(8)))
    structs = structs_of(case, num_mb, step)
    gc.collect()
    before_bytes = resident_bytes()
    start_peak()
    began = time.perf_counter()
    state = jax.block_until_ready(run(folder, step, structs))
    seconds = time.perf_counter() - began
    peak = peak_bytes()
    own_bytes = sum(s.data.nbytes for x in state.values() for s in x.addressable_shards)
    return Restored(seconds=seconds, extra_bytes=peak - before_bytes - own_bytes)


def tiny(folder: Path) -> Path:
    """Returns where the tiny state lies that is restored first."""
    return folder.with_name("tiny")


def structs_of(case: Case, num_mb: int, step: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns what to restore, and to where."""
    like = {
        name: jax.ShapeDtypeStruct(shape, np.float32)
        for name, shape in shapes_of(case, num_mb).items()
    }
    rows = zip(like.items(), step.view(like).shardings, strict=True)
    return {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
        for (name, x), sharding in rows
    }


def restore_with_orbax(folder: Path, step: Any, structs: Any) -> Any:
    """Restores with Orbax as it comes."""
    places = ocp.checkpoint_utils.construct_restore_args(structs)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as orbax:
        arguments = ocp.args.PyTreeRestore(structs, restore_args=places)
        return orbax.restore(folder / "0" / "state", args=arguments)


def restore_with_jzero(folder: Path, step: Any, structs: Any) -> Any:
    """Restores with a `Checkpointer`."""
    with jzero.Checkpointer(folder, step) as ckpt:
        return ckpt.restore(like=structs)


def in_process(*arguments: str) -> str:
    """Runs this module in a process of its own; returns its last line."""
    command = [sys.executable, "-m", "benchmarks.restoring", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return (done.stdout.splitlines() or [""])[-1]


def make_table(rows: list[tuple[Case, int, dict[str, list[Restored]]]]) -> str:
    """Writes the figures: best seconds, and the highest peak."""
    lines = [
        "| state | devices that saved, restore | largest leaf "
        "| Orbax: memory beside the state | jzero | Orbax: seconds | jzero |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for case, leaf_bytes, runs in rows:
        peaks = [max(r.extra_bytes for r in runs[way]) / 2**20 for way in WAYS]
        seconds = [min(r.seconds for r in runs[way]) for way in WAYS]
        lines.append(
            f"| {case.name} | {case.saved_by}, {case.restored_by} "
            f"| {leaf_bytes / 2**20:.2f} MiB "
            f"| {peaks[0]:.0f} MiB | {peaks[1]:.0f} MiB "
            f"| {seconds[0]:.2f} | {seconds[1]:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", type=int)
    parser.add_argument("--way")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.case is not None:
        case = CASES[options.case]
        if options.way is None:
            save(case, options.mb, options.folder)
            return
        found = restore(case, options.mb, options.folder, options.way)
        print(json.dumps(dataclasses.asdict(found)))
        return
    rows = []
    for number, case in enumerate(CASES):
        runs: dict[str, list[Restored]] = {way: [] for way in WAYS}
        with tempfile.TemporaryDirectory() as parent:
            common = ("--mb", str(options.mb), "--case", str(number))
            common += ("--folder", str(Path(parent) / "steps"))
            in_process(*common)
            for _ in range(options.rounds):
                for way in WAYS:
                    line = in_process(*common, "--way", way)
                    runs[way].append(Restored(**json.loads(line)))
        shapes = shapes_of(case, options.mb).values()
        leaf_bytes = max(4 * rows * width for rows, width in shapes)
        rows.append((case, leaf_bytes, runs))
        print(make_table(rows[-1:]).splitlines()[-1], flush=True)
    table = make_table(rows)
    if DOCUMENT.exists():
        write_part(DOCUMENT, "restoring", table)


if __name__ == "__main__":
    main()
