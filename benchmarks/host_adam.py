"""Parameters per second of an AdamW update in host memory, beside the rivals'.

Lives here: `time_host_adam`, behind `python -m benchmarks.offload --host-adam`. Each
contender is a process of its own, with as many threads as asked for, that holds its
state and updates when told to; they take turns, since timings drift.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jzero
from benchmarks.document import markdown_table

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "out" / "peers-venv" / "bin" / "python"
KERNEL = 'jzero, compiler="llvm"'
OFFLOADS = {
    'jzero, compiler="xla"': jzero.Offload(
        optimizer="host", params="host", compute="host"
    ),
    KERNEL: jzero.Offload(
        optimizer="host", params="host", compute="host", compiler="llvm"
    ),
}
RIVALS = {"torch fused AdamW": "torch", "DeepSpeedCPUAdam": "deepspeed"}
BEST = "DeepSpeedCPUAdam"


def update_step(offload: jzero.Offload, num_params: int) -> tuple[Any, list[Any]]:
    """An AdamW update of one leaf on one device, and its arguments."""
    tx = optax.adamw(1e-3)

    def step(params: Any, opt_state: Any, grads: Any) -> Any:
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    run = jzero.shard_train_step(
        step,
        stage=1,
        mesh=jax.make_mesh((1,), ("data",), devices=jax.devices()[:1]),
        config=jzero.ZeroConfig(offload=offload, on_finding="ignore"),
        state_argnums=(0, 1),
        batch_argnums=(),
    )

    def create() -> tuple[Any, Any]:
        params = {"w": jnp.zeros(num_params)}
        return params, tx.init(params)

    return run, [*run.init(create), {"w": jnp.full(num_params, 1e-3)}]


def work(name: str, num_params: int) -> None:
    """Updates whenever a line comes in, and prints the seconds."""
    step, (params, opt_state, grads) = update_step(OFFLOADS[name], num_params)

    def update() -> float:
        nonlocal params, opt_state
        start = time.perf_counter()
        params, opt_state = step(params, opt_state, grads)
        jax.block_until_ready((params, opt_state))
        return time.perf_counter() - start

    for _ in range(2):
        update()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(update(), flush=True)


def start(name: str, num_params: int, num_threads: int) -> subprocess.Popen[str]:
    """Starts the process of a contender."""
    count = str(num_threads)
    if name in RIVALS:
        script = ROOT / "benchmarks" / "host_adam_peers.py"
        command = [str(PEERS), str(script), RIVALS[name], str(num_params), count]
    else:
        command = [sys.executable, "-m", "benchmarks.host_adam", name, str(num_params)]
    variables = {"PJRT_NPROC": count, "OMP_NUM_THREADS": count, "XLA_FLAGS": ""}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | variables | {"JAX_PLATFORMS": "cpu"},
    )


def ask(process: subprocess.Popen[str]) -> float:
    """Has a contender update once; returns the seconds."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(_answer(process))


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        text = line.strip()
        if text == "ready" or text.replace(".", "").replace("e-", "").isdigit():
            return text
    raise RuntimeError(f"{process.args} ended with {process.wait()}")


def measure(
    names: Sequence[str], num_params: int, num_threads: int, num_rounds: int
) -> dict[str, list[float]]:
    """Returns billions of updated parameters per second, of each round."""
    processes: dict[str, subprocess.Popen[str]] = {}
    rates: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as stack:
        for name in names:
            process = stack.enter_context(start(name, num_params, num_threads))
            stack.callback(process.kill)
            processes[name] = process
            _answer(process)
        for _ in range(num_rounds):
            for name, process in processes.items():
                rates[name].append(num_params / ask(process) / 1e9)
    return rates


def row_of(name: str, num_threads: int, rates: dict[str, list[float]]) -> list[str]:
    """Median and fastest round of a contender, and their shares of the best rival's.

    What else runs on the machine slows the median; the fastest round shows what there
    is without it.
    """
    cells = [name, str(num_threads)]
    for pick in (np.median, max):
        rate = float(pick(rates[name]))
        share = f"{rate / float(pick(rates[BEST])):.2f}" if BEST in rates else "-"
        cells += [f"{rate:.2f}", share]
    return cells


def time_host_adam(
    num_params: int = 10**8, num_rounds: int = 21, threads: Sequence[int] = (1, 2)
) -> None:
    """Prints billions of parameters per second, and the share of the best rival's."""
    names = [*OFFLOADS, *(RIVALS if PEERS.exists() else ())]
    if not PEERS.exists():
        print("The rivals are not installed: python -m benchmarks.peers installs them.")
    rows: list[list[str]] = []
    for num_threads in threads:
        rates = measure(names, num_params, num_threads, num_rounds)
        rows += [row_of(name, num_threads, rates) for name in names]
    share = f"/ {BEST}"
    header = ["AdamW of", "threads", "median", share, "fastest", share]
    print(markdown_table(header, rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=OFFLOADS)
    parser.add_argument("num_params", type=int)
    given = parser.parse_args()
    work(given.name, given.num_params)
