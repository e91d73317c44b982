"""One process of a jzero job: `python -m benchmarks.peers.jzero_worker JOB`."""

from __future__ import annotations

from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from flax.traverse_util import unflatten_dict

import jzero
from benchmarks.peers import cases
from benchmarks.peers.flax_gpt import GPT
from benchmarks.peers.worker import Job, Trainer, run

Batch = dict[str, jax.Array]


def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
    """One step of one device, as a user writes it."""

    def loss_fn(params: Any) -> jax.Array:
        logits = state.apply_fn({"params": params}, batch["x"]).astype("float32")
        return optax.softmax_cross_entropy_with_integer_labels(
            logits, batch["y"]
        ).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def live_bytes() -> int:
    """Returns the bytes of all arrays of this process, each buffer once."""
    buffers = {
        shard.data.unsafe_buffer_pointer(): shard.data.nbytes
        for array in jax.live_arrays()
        if not jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
        for shard in array.addressable_shards
    }
    return sum(buffers.values())


def build(job: Job) -> Trainer:
    """Joins the other processes and places the state."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{job.port}", job.num_processes, job.rank, initialization_timeout=60
    )
    model = GPT(job.size, job.case.dtype)
    optimizer = optax.chain(
        optax.clip_by_global_norm(cases.MAX_GRAD_NORM),
        optax.adamw(cases.LEARNING_RATE, weight_decay=cases.WEIGHT_DECAY),
    )
    config = jzero.ZeroConfig(
        persistence_threshold=cases.PERSISTENCE_ELEMS,
        reduce_window_bytes=cases.WINDOW_BYTES,
        prefetch_bytes=cases.PREFETCH_BYTES,
    )
    step = jzero.shard_train_step(train_step, stage=job.case.stage, config=config)

    def create(params: Any) -> TrainState:
        return TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)

    nested = unflatten_dict({tuple(k.split("/")): v for k, v in job.weights().items()})
    held = [step.init(create, nested)]

    def advance(batch: dict[str, np.ndarray]) -> float:
        held[0], loss = step(held[0], step.shard_batch(batch))
        jax.block_until_ready(held[0])
        return float(loss)

    versions = {
        "jax": jax.__version__,
        "flax": flax.__version__,
        "optax": optax.__version__,
    }
    return Trainer(step=advance, state_bytes=live_bytes, versions=versions)


if __name__ == "__main__":
    run(build)
