"""A byte-level Flax GPT that learns Python's standard library, at any ZeRO stage.

    python -m examples.gpt --stage 3 --steps 300
    python -m examples.gpt --stage 2 --layers 8 --width 256 --scan --dtype bfloat16

The training step below is written for one device; nothing in it knows of jzero.
Shapes: B rows, L positions, V bytes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax.training.train_state import TrainState

import jzero
from examples.gpt_model import GPT
from examples.text import HELD_OUT_BYTES, batches, standard_library

Batch = dict[str, Any]


def evaluate(state: TrainState, batch: Batch, params: Any = None) -> jax.Array:
    """Mean cross-entropy per byte, in nats; of other parameters if there are."""
    params = state.params if params is None else params
    logits_BLV = state.apply_fn({"params": params}, batch["inputs"])
    losses_BL = optax.softmax_cross_entropy_with_integer_labels(
        logits_BLV, batch["targets"]
    )
    return losses_BL.mean()


def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Any]]:
    """One step on one device, as anybody would write it."""
    loss, grads = jax.value_and_grad(evaluate, argnums=2)(state, batch, state.params)
    return state.apply_gradients(grads=grads), {"loss": loss}


def write(
    state: TrainState, tokens_BL: jax.Array, start: jax.Array, key: jax.Array
) -> jax.Array:
    """Fills the positions from `start` on with bytes drawn from the model."""

    def draw(i: jax.Array, tokens_BL: jax.Array) -> jax.Array:
        logits_BLV = state.apply_fn({"params": state.params}, tokens_BL)
        logits_BV = jax.lax.dynamic_index_in_dim(logits_BLV, i - 1, 1, keepdims=False)
        drawn_B = jax.random.categorical(jax.random.fold_in(key, i), logits_BV / 0.6)
        return tokens_BL.at[:, i].set(drawn_B)

    return jax.lax.fori_loop(start, tokens_BL.shape[1], draw, tokens_BL)


class Built(NamedTuple):
    """What `build` returns; `state = create_state(*sample_args)`."""

    step_fn: Callable[..., Any]
    create_state: Callable[..., TrainState]
    sample_args: tuple[Any, ...]
    batch: Batch


def build(
    *,
    rows: int = 16,
    length: int = 64,
    steps: int = 300,
    learning_rate: float = 2e-3,
    seed: int = 0,
    remat: bool = True,
    **model: Any,
) -> Built:
    """Returns the training step, what creates its state, and a sample batch.

    Args:
      rows: of a batch, over all devices.
      length: bytes in a row.
      steps: over which the learning rate falls to a tenth.
      learning_rate: at its peak, after 20 steps.
      seed: of the weights.
      remat: compute a block's activations again in backward instead of keeping them.
      **model: fields of `GPT`.
    """
    gpt = GPT(remat=remat, **model)
    schedule = optax.schedules.warmup_cosine_decay_schedule(
        0.0, learning_rate, 20, max(steps, 21), learning_rate / 10
    )
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.98))

    def create_state(key: jax.Array, tokens_BL: jax.Array) -> TrainState:
        params = gpt.init(key, tokens_BL)["params"]
        return TrainState.create(apply_fn=gpt.apply, params=params, tx=tx)

    tokens = np.zeros((rows, length), np.int32)
    sample_args = (jax.random.key(seed), tokens[:1])
    return Built(
        train_step, create_state, sample_args, {"inputs": tokens, "targets": tokens}
    )


def sample_text(step: jzero.TrainStep, state: TrainState, prompt: str) -> str:
    """Returns the prompt and some 200 bytes that the model writes after it."""
    tokens = np.zeros((1, 256), np.int32)
    tokens[0, : len(prompt)] = list(prompt.encode())
    writer = step.eval_step(write, batch_argnums=())
    written = writer(state, tokens, np.int32(len(prompt)), jax.random.key(0))
    return bytes(np.asarray(written)[0].astype(np.uint8)).decode("ascii", "replace")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name, default, text in [
        ("stage", 3, "0, 1, 2 or 3"),
        ("steps", 300, "how long to train"),
        ("rows", 16, "of a batch"),
        ("length", 64, "bytes in a row"),
        ("layers", 4, "of the model"),
        ("width", 128, "of the model"),
        ("devices", 8, "virtual ones, where there are only CPUs"),
    ]:
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
    parser.add_argument("--dtype", default="float32", help="to compute in")
    parser.add_argument("--scan", action="store_true", help="layers in one loop")
    parser.add_argument("--plan", action="store_true", help="print the plan")
    settings = vars(parser.parse_args(arguments))
    stage, show_plan = settings.pop("stage"), settings.pop("plan")
    jax.config.update("jax_num_cpu_devices", settings.pop("devices"))
    built = build(**settings)

    step = jzero.shard_train_step(built.step_fn, stage=stage)
    state = step.init(built.create_state, *built.sample_args)
    if show_plan:
        print(step.plan(state, built.batch))
    text = standard_library()
    shape = {"rows": settings["rows"], "length": settings["length"]}
    data = batches(text[:-HELD_OUT_BYTES], **shape)
    for i in range(settings["steps"]):
        state, metrics = step(state, step.shard_batch(data[i]))
        if i % 20 == 0:
            print(f"step {i:5d}  loss {metrics['loss']:.4f}", flush=True)
    held_out = step.shard_batch(batches(text[-HELD_OUT_BYTES:], **shape)[0])
    loss = step.eval_step(evaluate)(state, held_out)
    print(f"stage {stage} on {jax.device_count()} devices: held-out loss {loss:.4f}")
    print(sample_text(step, state, "    def __init__(self"))


if __name__ == "__main__":
    main()
