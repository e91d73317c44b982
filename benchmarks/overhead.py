"""What jzero costs in Python: per call, and before the compiler starts.

    python -m benchmarks.overhead            # both
    python -m benchmarks.overhead --calls    # a call over a bare `jax.jit` call
    python -m benchmarks.overhead --trace    # tracing, planning and passes

Both sides of a comparison run interleaved, since timings drift; the lower decile
of many rounds is reported.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

import jzero
from tests.gpt_model import batch_shapes, build_gpt


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


def compare_calls(num_leaves: int = 500, num_rounds: int = 400) -> None:
    """Prints microseconds of a bare call, of ours, and the difference."""
    ours = jzero.shard_train_step(add_one, stage=0)
    x = ours.shard_batch(jnp.ones((8, 4)))
    state, _ = ours(ours.shard(make_state(num_leaves)), x)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    bare = jax.jit(
        add_one,
        donate_argnums=0,
        in_shardings=(shardings, x.sharding),
        out_shardings=(shardings, None),
    )
    states = {bare: jax.tree.map(jnp.copy, state), ours: state}
    seconds: dict[Any, list[float]] = {bare: [], ours: []}
    for _ in range(num_rounds):
        for call in (bare, ours):
            start = time.perf_counter()
            states[call], _ = call(states[call], x)
            seconds[call].append(time.perf_counter() - start)
            jax.block_until_ready(states[call])
    bare_us, ours_us = (float(np.quantile(s, 0.1)) * 1e6 for s in seconds.values())
    print(
        f"{num_leaves} leaves: bare {bare_us:.0f} us, jzero {ours_us:.0f} us, "
        f"over {ours_us - bare_us:.0f} us"
    )


def _seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def compare_tracing(num_layers: int, width: int = 256) -> None:
    """Prints seconds before lowering, of lowering and of the compiler."""
    gpt = build_gpt(vocab=1024, width=width, num_layers=num_layers)
    ids = jnp.zeros((1, 8), jnp.int32)
    state = jax.eval_shape(gpt.create, jax.random.key(0), ids)
    batch = batch_shapes(8, 128)
    step = jzero.shard_train_step(gpt.step)
    planned, _ = _seconds(lambda: step.plan(state, batch))
    lowered_s, lowered = _seconds(lambda: step.lower(state, batch))
    compiled_s, _ = _seconds(lowered.compile)
    print(
        f"{num_layers} layers: tracing, planning and passes {planned:.2f} s "
        f"({planned / compiled_s:.0%} of the compiler's {compiled_s:.2f} s), "
        f"lowering {lowered_s:.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--trace", action="store_true")
    args = parser.parse_args()
    if args.calls or not args.trace:
        for _ in range(3):
            compare_calls()
    if args.trace or not args.calls:
        for num_layers in (6, 12, 24):
            compare_tracing(num_layers)


if __name__ == "__main__":
    main()
