"""One process of a test: `python worker.py CASE COORDINATOR NUM_PROCESSES ID`.

Prints one JSON line with what it saw; the test compares the lines.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jzero

TX = optax.adam(1e-2)
SHARD_ALL = jzero.ZeroConfig(persistence_threshold=0)


def create(key: jax.Array) -> Any:
    one, two = jax.random.split(key)
    params = {
        "up": jax.random.normal(one, (24, 32)) * 0.2,
        "down": jax.random.normal(two, (32, 16)) * 0.2,
    }
    return params, TX.init(params)


def train_step(params: Any, opt_state: Any, x: jax.Array, key: jax.Array) -> Any:
    def loss(p):
        hidden = jnp.tanh(x @ p["up"])
        keep = jax.random.bernoulli(key, 0.9, hidden.shape)
        return ((jnp.where(keep, hidden, 0) @ p["down"] - 1) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(params)
    updates, opt_state = TX.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


def rows(i: int) -> np.ndarray:
    """The whole batch of step `i`; each process takes its part."""
    return np.random.default_rng(i).normal(size=(16, 24)).astype(np.float32)


def my_rows(i: int) -> np.ndarray:
    part = 16 // jax.process_count()
    return rows(i)[part * jax.process_index() :][:part]


OFFLOADED = jzero.ZeroConfig(
    persistence_threshold=0, offload=jzero.Offload(optimizer="host", params="host")
)


def train(stage: int, config: jzero.ZeroConfig = SHARD_ALL) -> dict[str, Any]:
    step = jzero.shard_train_step(train_step, stage=stage, config=config)
    state = step.init(create, jax.random.key(0))
    losses = []
    for i in range(4):
        batch = step.shard_batch(my_rows(i))
        assert batch.shape == (16, 24)
        *state, loss = step(*state, batch, jax.random.key(i))
        losses.append(float(loss))
    whole = step.gather(state[0])
    kinds = {x.sharding.memory_kind for x in jax.tree.leaves(state) if x.ndim}
    assert kinds == {"device" if config is SHARD_ALL else "pinned_host"}
    return {"losses": losses, "norm": float(np.abs(whole["up"]).sum())}


def refuse_local_batch() -> dict[str, Any]:
    step = jzero.shard_train_step(train_step, config=SHARD_ALL)
    state = step.init(create, jax.random.key(0))
    try:
        step(*state, my_rows(0), jax.random.key(0))
    except jzero.BatchError as error:
        *state, loss = step(*state, step.shard_batch(my_rows(0)), jax.random.key(0))
        return {"error": str(error), "loss": float(loss)}
    return {"error": ""}


def placed_from_host() -> dict[str, Any]:
    step = jzero.shard_train_step(train_step, config=SHARD_ALL)
    state = step.shard(jax.tree.map(np.asarray, create(jax.random.key(0))))
    *state, loss = step(*state, step.shard_batch(my_rows(0)), jax.random.key(0))
    return {"loss": float(loss)}


def reads() -> dict[str, Any]:
    """What each process can read of a sharded state by itself, and what not."""
    step = jzero.shard_train_step(train_step, config=SHARD_ALL)
    state = step.init(create, jax.random.key(0))
    *state, loss = step(*state, step.shard_batch(my_rows(0)), jax.random.key(0))
    try:
        refused = str(np.asarray(state[0]["up"]).shape)
    except RuntimeError as error:
        refused = str(error)
    whole = step.gather({"params": state[0], "key": jax.random.key(3), "n": 7})
    return {
        "loss": float(loss),
        "count": int(state[1][0].count),
        "refused": refused,
        "shape": whole["params"]["up"].shape,
        "kinds": [type(x).__name__ for x in jax.tree.leaves(whole["params"])],
        "n": whole["n"],
    }


def uneven_batches() -> dict[str, Any]:
    """Process 1 has a batch more than process 0."""
    step = jzero.shard_train_step(train_step, config=SHARD_ALL)
    state = step.init(create, jax.random.key(0))
    for i in range(2 + jax.process_index()):
        *state, loss = step(*state, step.shard_batch(my_rows(i)), jax.random.key(i))
        print("loss of batch", i, float(loss), flush=True)
    return {}


def one_fails() -> dict[str, Any]:
    step = jzero.shard_train_step(train_step, config=SHARD_ALL)
    state = step.init(create, jax.random.key(0))
    *state, loss = step(*state, step.shard_batch(my_rows(0)), jax.random.key(0))
    loss.block_until_ready()
    if jax.process_index() == 1:
        raise SystemExit("process 1 gives up")
    *state, loss = step(*state, step.shard_batch(my_rows(1)), jax.random.key(1))
    return {"loss": float(loss)}


CASES = {
    "train1": lambda: train(1),
    "train3": lambda: train(3),
    "train3_offloaded": lambda: train(3, OFFLOADED),
    "refuse_local_batch": refuse_local_batch,
    "placed_from_host": placed_from_host,
    "reads": reads,
    "uneven_batches": uneven_batches,
    "one_fails": one_fails,
}


if __name__ == "__main__":
    case, address, num_processes, process_id = sys.argv[1:]
    jax.distributed.initialize(
        address,
        int(num_processes),
        int(process_id),
        initialization_timeout=60,
        heartbeat_timeout_seconds=10,
        shutdown_timeout_seconds=10,
    )
    print(json.dumps(CASES[case]()), flush=True)
