"""What offloading saves, compiled, and what it costs on CPUs, timed.

    python -m benchmarks.offload             # compiled for H100s, into docs/offload.md
    python -m benchmarks.offload --time      # on these CPUs, into the terminal
    python -m benchmarks.offload --host-adam # an update alone, beside DeepSpeed's

The compiled part runs nothing: bytes are the compiler's. The timed parts interleave
what they compare, since timings drift, and print ratios.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jzero
from benchmarks.document import markdown_table, write_part
from benchmarks.host_adam import time_host_adam
from jzero.audit.pods import pod_mesh
from jzero.audit.step_report import StepReport
from tests.gpt_model import batch_shapes, build_gpt

DOCUMENT = Path(__file__).parents[1] / "docs" / "offload.md"
MIB = 2**20
GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A GPT and its batch on one device."""

    width: int = 5120
    num_layers: int = 40
    num_tokens: int = 1024


def report_of(
    step_fn: Callable[..., Any],
    args: Sequence[Any],
    *,
    pod: str,
    stage: int,
    offload: jzero.Offload | None,
    **settings: Any,
) -> StepReport:
    """Compiles a step for a pod that is not there."""
    config = jzero.ZeroConfig(offload=offload, on_finding="ignore")
    step = jzero.shard_train_step(
        step_fn, stage=stage, mesh=pod_mesh(pod), config=config, **settings
    )
    return step.compile(*args).report()


def adam_rows(num_leaves: int = 16, rows: int = 4096) -> list[list[str]]:
    """Temporaries of an Adam update of offloaded moments, by window."""
    tx = optax.adam(1e-3)

    def step(params: Any, opt_state: Any, grads: Any) -> Any:
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    leaf = jax.ShapeDtypeStruct((rows, rows), jnp.float32)
    params = {f"w{i}": leaf for i in range(num_leaves)}
    args = (params, jax.eval_shape(tx.init, params), params)
    leaf_bytes = 4 * rows * rows
    cases = {
        "one leaf": jzero.Offload(optimizer="host", window=leaf_bytes),
        "four leaves": jzero.Offload(optimizer="host", window=4 * leaf_bytes),
        "no bound": jzero.Offload(optimizer="host", window=2**50),
        'compute="host"': jzero.Offload(optimizer="host", compute="host"),
    }
    table = []
    for name, offload in cases.items():
        report = report_of(
            step,
            args,
            pod="h100:1x1",
            stage=3,
            offload=offload,
            state_argnums=(0, 1),
            batch_argnums=(),
        )
        table.append(
            [
                name,
                f"{report.memory.temp_bytes / MIB:.0f}",
                f"{report.memory.host_argument_bytes / MIB:.0f}",
                f"{report.memory.host_temp_bytes / MIB:.0f}",
                f"{report.host_traffic.to_device_bytes / MIB:.0f}",
                f"{report.host_traffic.to_host_bytes / MIB:.0f}",
            ]
        )
    return table


OFFLOADS: dict[str, jzero.Offload | None] = {
    "nothing": None,
    "optimizer": jzero.Offload(optimizer="host"),
    "both, ratio 0.5": jzero.Offload(optimizer="host", params="host", ratio=0.5),
    "both": jzero.Offload(optimizer="host", params="host"),
}


def headline_rows(
    size: Size,
    pod: str = "h100:1x1",
    cases: Sequence[str] = tuple(OFFLOADS),
    stages: Sequence[int] = (1, 2, 3),
) -> list[list[str]]:
    """Bytes of one device and of its host memory for a large model."""
    gpt = build_gpt(width=size.width, num_layers=size.num_layers, is_scanned=True)
    num_devices = pod_mesh(pod).size
    args = (gpt.state_shapes(), batch_shapes(num_devices, size.num_tokens))
    table = []
    for name in cases:
        for stage in stages:
            report = report_of(
                gpt.step, args, pod=pod, stage=stage, offload=OFFLOADS[name]
            )
            planned = report.plan.host_bytes
            table.append(
                [
                    f"{name}, stage {stage}",
                    f"{report.memory.device_peak_bytes / GB:.4g}",
                    f"{report.memory.host_peak_bytes / GB:.4g}",
                    f"{planned / GB:.4g}",
                    f"{report.host_traffic.to_device_bytes / GB:.4g}",
                    f"{report.host_traffic.to_host_bytes / GB:.4g}",
                ]
            )
    return table


def write_document(size: Size) -> None:
    """Compiles both tables and writes them into the document."""
    header = ["window", "device temp", "host at rest", "host temp", "in", "back"]
    parts = [
        "Adam on 16 leaves of 64 MiB, moments offloaded, one H100; MiB:",
        markdown_table(header, adam_rows()),
        f"GPT of {size.num_layers} layers of width {size.width} in a scan, 13 B "
        f"float32 parameters, AdamW, 1 x {size.num_tokens} tokens, one H100; GB:",
        markdown_table(
            ["offloaded", "device peak", "host peak", "host formula", "in", "back"],
            headline_rows(size),
        ),
    ]
    write_part(DOCUMENT, "offload", "\n\n".join(parts))
    print("\n\n".join(parts))


def time_steps(num_rounds: int = 12) -> None:
    """Prints the time of a step with offload over one without, interleaved."""
    gpt = build_gpt(vocab=2048, width=256, num_layers=4, num_heads=8, dtype=jnp.float32)
    ids = np.random.default_rng(0).integers(0, 2048, size=(8, 129))
    batch = {"x": ids[:, :-1], "y": ids[:, 1:]}
    cases = {
        "no offload": None,
        "optimizer": jzero.Offload(optimizer="host"),
        "both": jzero.Offload(optimizer="host", params="host"),
        'both, compute="host"': jzero.Offload(
            optimizer="host", params="host", compute="host"
        ),
    }
    steps, states = {}, {}
    for name, offload in cases.items():
        config = jzero.ZeroConfig(offload=offload, on_finding="ignore")
        steps[name] = jzero.shard_train_step(gpt.step, stage=3, config=config)
        states[name] = steps[name].init(
            gpt.create, jax.random.key(0), jnp.zeros((1, 8), jnp.int32)
        )
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(num_rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            states[name], metrics = step(states[name], batch)
            jax.block_until_ready(metrics)
            jax.block_until_ready(states[name])
            seconds[name].append(time.perf_counter() - start)
    base = float(np.median(seconds["no offload"][2:]))
    for name, values in seconds.items():
        print(f"{name}: {np.median(values[2:]) / base:.2f} x the time of a step")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--host-adam", action="store_true")
    parser.add_argument("--params", type=int, default=10**8, help="of --host-adam")
    args = parser.parse_args(arguments)
    if args.time:
        time_steps()
    if args.host_adam:
        time_host_adam(args.params)
    if not args.time and not args.host_adam:
        write_document(Size())


if __name__ == "__main__":
    main()
