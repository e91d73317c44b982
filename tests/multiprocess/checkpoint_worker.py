"""One process of a checkpoint test.

    python checkpoint_worker.py CASE COORDINATOR NUM_PROCESSES ID FOLDER

Prints one JSON line with what it saw; the test compares the lines.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Any

import jax
import numpy as np

import jzero
from tests.jzero.checkpoint.small import SHARD_ALL, create, rows, train_step

NUM_STEPS = 3


class Rows:
    """An iterator over this process's rows."""

    def __init__(self) -> None:
        self.state = {"next": 0, "process": jax.process_index()}

    def get_state(self) -> dict[str, int]:
        return dict(self.state)

    def set_state(self, state: dict[str, int]) -> None:
        self.state = dict(state)


def make_step(stage: int = 3) -> Any:
    return jzero.shard_train_step(train_step, stage=stage, config=SHARD_ALL)


def train(step: Any, state: Any, numbers: range) -> tuple[Any, list[float]]:
    losses = []
    part = 16 // jax.process_count()
    for i in numbers:
        mine = rows(i)[part * jax.process_index() :][:part]
        state, loss = step(state, step.shard_batch(mine))
        losses.append(float(loss))
    return state, losses


def digest(step: Any, state: Any) -> str:
    """One text for every bit of a state."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        found.update(str((leaf.dtype, leaf.shape)).encode())
        found.update(np.ascontiguousarray(step.gather(leaf)).tobytes())
    return found.hexdigest()


def save(folder: str) -> dict[str, Any]:
    step, data = make_step(), Rows()
    state, _ = train(step, step.init(create), range(NUM_STEPS))
    data.state["next"] = NUM_STEPS
    with jzero.Checkpointer(folder, step, timeout_seconds=60) as ckpt:
        for i in range(NUM_STEPS):
            ckpt.save(i, state, data=data)
        found = digest(step, state)
        again = Rows()
        ckpt.restore(like=state, data=again)
    num_bytes = sum(leaf.size_bytes for leaf in step.view(state).facts)
    _, more = train(step, state, range(NUM_STEPS, NUM_STEPS + 1))
    seen = {"digest": found, "next": more, "bytes": num_bytes}
    return {**seen, "position": again.state}


def restore(folder: str) -> dict[str, Any]:
    step, data = make_step(), Rows()
    with jzero.Checkpointer(folder, step, timeout_seconds=60) as ckpt:
        state, start = ckpt.restore_or_init(create)
        found = digest(step, state)
        _, more = train(step, state, range(start, start + 1))
        try:
            ckpt.restore(like=step.init(create), data=data)
            position: Any = data.state
        except jzero.CheckpointError as error:
            position = str(error)
    return {"digest": found, "start": start, "next": more, "position": position}


def one_alone(folder: str) -> dict[str, Any]:
    """Process 0 saves, process 1 does not."""
    step = make_step()
    state = step.init(create)
    with jzero.Checkpointer(folder, step, timeout_seconds=60) as ckpt:
        ckpt.save(0, state)
    began = time.monotonic()
    ckpt = jzero.Checkpointer(folder, step, timeout_seconds=3)
    text = ""
    if jax.process_index() == 0:
        try:
            ckpt.save(1, state)
        except jzero.CheckpointError as error:
            text = str(error)
    return {
        "error": text,
        "is_bounded": time.monotonic() - began < 60,
        "latest": ckpt.latest_complete_step,
    }


CASES = {
    "save": save,
    "restore": restore,
    "one_alone": one_alone,
}


if __name__ == "__main__":
    case, address, num_processes, process_id, folder = sys.argv[1:]
    jax.distributed.initialize(
        address,
        int(num_processes),
        int(process_id),
        initialization_timeout=60,
        heartbeat_timeout_seconds=30,
        shutdown_timeout_seconds=30,
    )
    print(json.dumps(CASES[case](folder)), flush=True)
