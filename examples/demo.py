"""What `make demo` shows: one training step at every ZeRO stage, on 8 devices.

The same GPT learns the same real text four times. The losses agree, and what a
device has to hold does not.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot
from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

import jzero
from examples import gpt
from examples.text import HELD_OUT_BYTES, batches, standard_library

STAGES = (0, 1, 2, 3)
PROMPT = "    def __init__(self"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one stage came to.

    Attributes:
      stage: ZeRO stage.
      losses: one per step, in nats per byte.
      role_bytes: bytes at rest on the fullest device, by role.
      seconds_per_step: median, without compilation.
      held_out_loss: after training, on text that was not trained on.
      text: what the model wrote; only the last stage writes.
    """

    stage: int
    losses: np.ndarray
    role_bytes: dict[str, int]
    seconds_per_step: float
    held_out_loss: float
    text: str


def measured_bytes(state: Any, roles: Sequence[str]) -> dict[str, int]:
    """Adds up, from the arrays themselves, what the fullest device holds."""
    held = {role: dict.fromkeys(jax.devices(), 0) for role in roles}
    for leaf, role in zip(jax.tree.leaves(state), roles, strict=True):
        for shard in leaf.addressable_shards:
            held[role][shard.device] += shard.data.nbytes
    return {role: max(per_device.values()) for role, per_device in held.items()}


def train(
    stage: int,
    built: gpt.Built,
    text: np.ndarray,
    steps: int,
    tick: Callable[[float], None],
) -> Run:
    """Trains from the same weights on the same batches, at one stage.

    Args:
      stage: ZeRO stage.
      built: the model and its training step.
      text: bytes to learn.
      steps: how long.
      tick: called with the loss after every step.
    """
    rows, length = built.batch["inputs"].shape
    data = batches(text[:-HELD_OUT_BYTES], rows=rows, length=length)
    step = jzero.shard_train_step(built.step_fn, stage=stage)
    state = step.init(built.create_state, *built.sample_args)
    roles = [leaf.role for leaf in step.plan(state, built.batch).state]
    losses, seconds = [], []
    for i in range(steps):
        batch = step.shard_batch(data[i])
        start = time.perf_counter()
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
        seconds.append(time.perf_counter() - start)
        tick(losses[-1])
    held_out = batches(text[-HELD_OUT_BYTES:], rows=8 * rows, length=length)[0]
    held_out_loss = step.eval_step(gpt.evaluate)(state, step.shard_batch(held_out))
    return Run(
        stage=stage,
        losses=np.array(losses),
        role_bytes=measured_bytes(state, roles),
        seconds_per_step=float(np.median(seconds[1:])),
        held_out_loss=float(held_out_loss),
        text=gpt.sample_text(step, state, PROMPT) if stage == STAGES[-1] else "",
    )


def plot(runs: Sequence[Run], path: Path) -> None:
    """Draws the curves, thick to thin since they coincide, and their differences."""
    figure, (upper, lower) = pyplot.subplots(
        2, 1, figsize=(8, 7), sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    styles = [("0.75", 7.0, "-"), ("C0", 4.0, "-"), ("C1", 2.2, "--"), ("k", 1.0, ":")]
    for run, (color, width, line) in zip(runs, styles, strict=True):
        style = {"color": color, "linewidth": width, "linestyle": line}
        upper.plot(run.losses, label=f"stage {run.stage}", **style)
        if run is not runs[0]:
            difference = np.abs(run.losses - runs[0].losses)
            lower.plot(difference, label=f"|stage {run.stage} - stage 0|", **style)
    upper.set(
        ylabel="loss (nats per byte)", title="One training step, four ZeRO stages"
    )
    lower.set(xlabel="step", ylabel="difference")
    lower.set_yscale("symlog", linthresh=1e-7)
    lower.set_ylim(0, 1e-2)
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
        axes.legend(loc="upper right" if axes is upper else "upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def table(runs: Sequence[Run]) -> Table:
    """One row per stage."""
    result = Table(
        title="KiB: what one device holds of the state between steps",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for name in ("stage", "last\nloss", "held\nout"):
        result.add_column(name, justify="right", no_wrap=True)
    for name in ("params", "optimizer", "other", "in all"):
        result.add_column(f"{name}\nKiB", justify="right", no_wrap=True)
    result.add_column("of\nstage 0", justify="right", no_wrap=True)
    result.add_column("s per\nstep", justify="right", no_wrap=True)
    whole = sum(runs[0].role_bytes.values())
    for run in runs:
        held = [run.role_bytes.get(r, 0) for r in ("parameter", "optimizer", "other")]
        result.add_row(
            str(run.stage),
            f"{run.losses[-1]:.5f}",
            f"{run.held_out_loss:.4f}",
            *(f"{n / 1024:,.1f}" for n in (*held, sum(held))),
            f"{sum(held) / whole:.3f}",
            f"{run.seconds_per_step:.3f}",
        )
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=200, help="at each stage")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path("out/demo.png"))
    args = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    console = Console()
    text = standard_library()
    built = gpt.build(steps=args.steps, layers=args.layers, width=args.width)
    console.print(
        f"Training a byte-level GPT of {args.layers} layers on {len(text):,} bytes of "
        f"Python's standard library: {args.steps} steps at each stage, on "
        f"{jax.device_count()} virtual devices."
    )
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("loss {task.fields[loss]}"),
    )
    runs = []
    with Progress(*columns, console=console) as progress:
        for stage in STAGES:
            bar = progress.add_task(f"stage {stage}", total=args.steps, loss="-")

            def tick(loss: float, bar: TaskID = bar) -> None:
                progress.update(bar, advance=1, loss=f"{loss:.3f}")

            runs.append(train(stage, built, text, args.steps, tick))
    console.print(table(runs))
    plot(runs, args.out)
    console.print(Panel(runs[-1].text, title="written by the model of stage 3"))
    console.print(f"The four loss curves: {args.out}")


if __name__ == "__main__":
    main()
