"""Several processes: one command starts two of them, or it joins those of a pod.

    python -m examples.multihost                   # 2 processes x 4 virtual devices
    srun python -m examples.multihost --rows 256   # a cluster that JAX recognises
    JAX_COORDINATOR_ADDRESS=host:port python -m examples.multihost --process 3 ...

Each process reads its own part of the text and passes its own rows to
`shard_batch`. A process that fails leaves at once, every wait of the others is
bounded, and the launcher stops them and says which one failed.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence

import jax
import numpy as np

import jzero
from examples import gpt
from examples.text import batches, standard_library

# What tells that a cluster started this process, in the order JAX looks for it.
CLUSTER_VARIABLES = (
    "JAX_COORDINATOR_ADDRESS",
    "SLURM_JOB_ID",
    "OMPI_COMM_WORLD_SIZE",
    "TPU_WORKER_HOSTNAMES",
    "MEGASCALE_COORDINATOR_ADDRESS",
)
WAIT_SECONDS = 20


def work(args: argparse.Namespace) -> None:
    """Trains as one of several processes."""
    if args.virtual_devices:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", args.virtual_devices)
    jax.distributed.initialize(
        args.coordinator,
        num_processes=args.processes if args.process is not None else None,
        process_id=args.process,
        initialization_timeout=60,
        heartbeat_timeout_seconds=WAIT_SECONDS,
        shutdown_timeout_seconds=WAIT_SECONDS,
    )
    index, count = jax.process_index(), jax.process_count()
    built = gpt.build(rows=args.rows, length=32, steps=args.steps, layers=2, width=64)
    data = batches(
        standard_library(),
        rows=args.rows // count,
        length=32,
        part=index,
        num_parts=count,
    )
    config = jzero.ZeroConfig(persistence_threshold=1024)
    step = jzero.shard_train_step(built.step_fn, stage=args.stage, config=config)
    state = step.init(built.create_state, *built.sample_args)
    loss = float("nan")
    for i in range(args.steps):
        if i == args.fail_at and index == count - 1:
            raise RuntimeError(f"failing on purpose at step {i}")
        state, metrics = step(state, step.shard_batch(data[i]))
        # Every process may read a metric: it is whole on each of them.
        loss = float(metrics["loss"])
        if index == 0 and i % 5 == 0:
            print(f"step {i:4d}  loss {loss:.4f}", flush=True)
    params = step.gather(state.params)  # every process must take part
    total = sum(float(np.abs(leaf).sum()) for leaf in jax.tree.leaves(params))
    # One write, line end included: processes that share a terminal do not mix.
    sys.stdout.write(
        f"process {index} of {count}, {jax.local_device_count()} of "
        f"{jax.device_count()} devices: loss {loss:.6f}, |weights| {total:.4f}\n"
    )
    sys.stdout.flush()


def launch(args: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Starts the processes here and waits; stops them all once one has failed.

    Returns:
      0, or the exit status of the process that failed first.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "examples.multihost", *arguments]
    command += ["--coordinator", f"127.0.0.1:{port}", "--virtual-devices", "4"]
    running = {
        i: subprocess.Popen([*command, "--process", str(i)])
        for i in range(args.processes)
    }
    deadline = time.monotonic() + args.timeout
    failure: tuple[str, int] | None = None
    try:
        while running and failure is None:
            for i, process in list(running.items()):
                status = process.poll()
                if status is not None:
                    del running[i]
                if status:
                    failure = f"process {i} ended with status {status}", status
                    break
            if failure is None and time.monotonic() > deadline:
                failure = f"no end after {args.timeout} s (--timeout)", 1
            time.sleep(0.1)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    if failure is None:
        return 0
    stopped = ", ".join(map(str, running)) or "none"
    print(f"{failure[0]}; still running and stopped: {stopped}", file=sys.stderr)
    return abs(failure[1])


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--stage", type=int, default=3, choices=range(4))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rows", type=int, default=16, help="over all processes")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--process", type=int, help="which of them this is")
    parser.add_argument("--coordinator", help="host:port of process 0")
    parser.add_argument("--virtual-devices", type=int, help="per process")
    parser.add_argument("--fail-at", type=int, help="step at which the last one fails")
    parser.add_argument("--timeout", type=float, default=600, help="of the launcher")
    args = parser.parse_args(arguments)
    if args.coordinator or any(os.environ.get(name) for name in CLUSTER_VARIABLES):
        try:
            work(args)
        except Exception:
            # An orderly exit would wait for the others, who wait for this one.
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        return 0
    return launch(args, arguments)


if __name__ == "__main__":
    sys.exit(main())
