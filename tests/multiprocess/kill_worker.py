"""One process that saves and saves, until it is killed.

    python kill_worker.py FOLDER COORDINATOR NUM_PROCESSES ID

Every leaf of the state of step i is full of i, so a state that was put together of
two steps would show. Prints a line for each thing that it knows for sure.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jzero

SHAPES = {"up": (512, 256), "down": (256, 512), "bias": (512,), "odd": (7, 3), "n": ()}


class Counter:
    """A data iterator that is as far as the training is."""

    def __init__(self) -> None:
        self.position = 0

    def get_state(self) -> dict[str, int]:
        return {"position": self.position}

    def set_state(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def create() -> dict[str, jax.Array]:
    return {name: jnp.full(shape, -1.0) for name, shape in SHAPES.items()}


def train_step(state: Any, batch: jax.Array) -> Any:
    return jax.tree.map(lambda leaf: leaf + batch.mean(), state), batch.sum()


def tell(text: str) -> None:
    """Prints a line of its own, though libraries may be in the middle of one."""
    sys.stdout.write(f"\n{text}\n")
    sys.stdout.flush()


def main(folder: str) -> None:
    config = jzero.ZeroConfig(persistence_threshold=0)
    step = jzero.shard_train_step(train_step, config=config)
    data = Counter()
    with jzero.Checkpointer(folder, step, keep=2, timeout_seconds=60) as ckpt:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", jzero.CheckpointWarning)
            state, start = ckpt.restore_or_init(create, data=data)
        for leaf in jax.tree.leaves(state):
            for shard in leaf.addressable_shards:
                assert (np.asarray(shard.data) == start - 1).all(), "torn state"
        assert data.position == start, "torn position"
        tell(f"restored {start - 1}")
        rows = np.ones((8 // jax.process_count(), 4), np.float32)
        batch = step.shard_batch(rows)
        for i in range(start, start + 1000):
            state, _ = step(state, batch)
            data.position += 1
            tell(f"saving {i}")
            ckpt.save(i, state, data=data)
            if i % 3 == 0:
                ckpt.wait()
                tell(f"saved {i}")


if __name__ == "__main__":
    folder, address, num_processes, process_id = sys.argv[1:]
    if int(num_processes) > 1:
        jax.distributed.initialize(
            address, int(num_processes), int(process_id), initialization_timeout=60
        )
    main(folder)
