"""Scikit-learn's digits, a conv net with BatchNorm, and the accuracy at the end.

    python -m examples.digits_batchnorm --stage 3

The running statistics are state that is no parameter: jzero keeps them whole on
every device, and they are those of the global batch, as on one device.
Shapes: B images, 8 x 8 pixels, 10 classes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import grain
import jax
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from sklearn.datasets import load_digits

import jzero

NUM_TEST = 256


class ConvNet(nn.Module):
    """Two convolutions with BatchNorm, then two dense layers."""

    @nn.compact
    def __call__(self, images: jax.Array, is_training: bool) -> jax.Array:
        """Maps (B, 8, 8, 1) to logits (B, 10)."""
        x = images
        for channels in (32, 64):
            x = nn.Conv(channels, (3, 3), use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not is_training)(x))
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(128)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


class State(TrainState):
    """Train state with running statistics."""

    batch_stats: Any


def train_step(
    state: State, batch: dict[str, jax.Array]
) -> tuple[State, dict[str, jax.Array]]:
    """One step on one device, as anybody would write it."""

    def loss_of(params: Any) -> tuple[jax.Array, Any]:
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, changed = state.apply_fn(
            variables, batch["image"], True, mutable=["batch_stats"]
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return losses.mean(), changed["batch_stats"]

    (loss, stats), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=stats), {"loss": loss}


def num_right(state: State, batch: dict[str, jax.Array]) -> jax.Array:
    """How many images of a batch are classified right."""
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    logits = state.apply_fn(variables, batch["image"], False)
    return (logits.argmax(-1) == batch["label"]).sum()


def create_state(key: jax.Array, images: jax.Array) -> State:
    """Returns fresh weights, statistics and optimizer state."""
    net = ConvNet()
    variables = net.init(key, images, False)
    return State.create(
        apply_fn=net.apply,
        params=variables["params"],
        tx=optax.adamw(2e-3),
        batch_stats=variables["batch_stats"],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--stage", type=int, default=3, choices=range(4))
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--devices", type=int, default=8)
    args = parser.parse_args(arguments)
    jax.config.update("jax_num_cpu_devices", args.devices)

    pixels, labels = load_digits(return_X_y=True)
    images = (np.asarray(pixels).reshape(-1, 8, 8, 1) / 16).astype(np.float32)
    labels = np.asarray(labels).astype(np.int32)
    order = np.random.default_rng(0).permutation(len(labels))
    examples = [{"image": images[i], "label": labels[i]} for i in order]
    data = grain.MapDataset.source(examples[NUM_TEST:]).seed(0).shuffle().repeat()
    data = data.batch(args.rows, drop_remainder=True)

    step = jzero.shard_train_step(train_step, stage=args.stage)
    state = step.init(create_state, jax.random.key(0), images[:1])
    for i in range(args.steps):
        state, metrics = step(state, step.shard_batch(data[i]))
        if i % 20 == 0:
            print(f"step {i:5d}  loss {metrics['loss']:.4f}", flush=True)
    test = grain.MapDataset.source(examples[:NUM_TEST]).batch(NUM_TEST)[0]
    right = step.eval_step(num_right)(state, step.shard_batch(test))
    accuracy = int(right) / NUM_TEST
    print(f"stage {args.stage} on {jax.device_count()} devices: {accuracy:.1%} right")


if __name__ == "__main__":
    main()
