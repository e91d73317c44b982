"""What jzero costs in Python: per call, and before the compiler starts.

    python -m benchmarks.overhead            # both
    python -m benchmarks.overhead --calls    # a call over a bare `jax.jit` call
    python -m benchmarks.overhead --trace    # tracing, planning and passes

Calls take turns on the same arrays, in a new order every round, since timings drift
and since where a state lies in memory matters as much as who handles it: two equal
calls with a state each differ by more than what is measured here.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

import jzero
from tests.gpt_model import batch_shapes, build_gpt

# A turn is so many calls, of which the first are not counted: caches are another's.
CALLS_PER_TURN = 30
UNCOUNTED_CALLS = 10


def add_one(state: Any, x: jax.Array) -> Any:
    """A step that costs the device next to nothing."""
    return jax.tree.map(lambda leaf: leaf + 1, state), x.sum()


def make_state(num_leaves: int) -> Any:
    """A state of small arrays, shaped like a model's."""

    def layers() -> Any:
        return {
            f"layer_{i}": {"kernel": jnp.ones((16, 8)), "bias": jnp.ones((8,))}
            for i in range(num_leaves // 4)
        }

    return {"params": layers(), "mu": layers()}


def compare_calls(num_leaves: int = 500, num_rounds: int = 40) -> float:
    """Prints microseconds of a bare call and what ours takes over it; returns that."""
    ours = jzero.shard_train_step(add_one, stage=0)
    x = ours.shard_batch(jnp.ones((8, 4)))
    state, _ = ours(ours.shard(make_state(num_leaves)), x)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    calls: dict[str, Callable[..., Any]] = {"ours": ours}
    for name in ("bare", "equal"):
        calls[name] = jax.jit(
            lambda state, x: add_one(state, x),
            donate_argnums=0,
            in_shardings=(shardings, x.sharding),
            out_shardings=(shardings, None),
        )
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    rng = random.Random(0)
    for _ in range(num_rounds):
        for name in rng.sample(list(calls), len(calls)):
            micros, state = _turn(calls[name], state, x)
            rounds[name].append(micros)
    # What a round has in common with the next is little, with itself much.
    bare_us = (np.array(rounds["bare"]) + rounds["equal"]) / 2
    over_us = float(np.median(rounds["ours"] - bare_us))
    apart_us = np.median(np.subtract(rounds["bare"], rounds["equal"]))
    print(
        f"{num_leaves} leaves, {jax.device_count()} devices: bare "
        f"{np.median(bare_us):.0f} us, jzero over it {over_us:+.0f} us; two equal "
        f"bare calls differ by {abs(apart_us):.0f} us"
    )
    return over_us


def _turn(call: Callable[..., Any], state: Any, x: jax.Array) -> tuple[float, Any]:
    """(median microseconds of a call, the state after some)."""
    # A copy, so that nobody holds on to what the others go on with.
    state = jax.block_until_ready(jax.tree.map(jnp.copy, state))
    micros = []
    for _ in range(CALLS_PER_TURN):
        start = time.perf_counter()
        state, _ = call(state, x)
        micros.append(1e6 * (time.perf_counter() - start))
        jax.block_until_ready(state)
    return float(np.median(micros[UNCOUNTED_CALLS:])), state


def _seconds(action: Callable[[], Any]) -> tuple[float, float, Any]:
    """(seconds, those of processors, result)."""
    start, start_cpu = time.perf_counter(), time.process_time()
    result = action()
    return time.perf_counter() - start, time.process_time() - start_cpu, result


def compare_tracing(num_layers: int, width: int = 256) -> None:
    """Prints seconds before lowering, of lowering and of the compiler."""
    gpt = build_gpt(vocab=1024, width=width, num_layers=num_layers)
    ids = jnp.zeros((1, 8), jnp.int32)
    state = jax.eval_shape(gpt.create, jax.random.key(0), ids)
    batch = batch_shapes(8, 128)
    step = jzero.shard_train_step(gpt.step)
    planned, planned_cpu, _ = _seconds(lambda: step.plan(state, batch))
    lowered_s, _, lowered = _seconds(lambda: step.lower(state, batch))
    compiled_s, compiled_cpu, _ = _seconds(lowered.compile)
    print(
        f"{num_layers} layers: tracing, planning and passes {planned:.2f} s "
        f"({planned / compiled_s:.0%} of the compiler's {compiled_s:.2f} s; "
        f"{planned_cpu / compiled_cpu:.0%} in processor time), "
        f"lowering {lowered_s:.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--trace", action="store_true")
    args = parser.parse_args()
    if args.calls or not args.trace:
        over_us = [compare_calls() for _ in range(8)]
        print(f"jzero over a bare call: {np.mean(over_us):+.0f} us on average")
    if args.trace or not args.calls:
        for num_layers in (6, 12, 24):
            compare_tracing(num_layers)


if __name__ == "__main__":
    main()
