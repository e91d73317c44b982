"""A small `flax.nnx` GPT whose step mutates its model and its optimizer.

    python -m examples.gpt_nnx --stage 2

The step takes `(model, optimizer, batch)` and returns only the loss; under jzero
it is called the same way, and the objects hold sharded arrays.
Shapes: B rows, L positions, D width, V bytes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import jzero
from examples.text import HELD_OUT_BYTES, batches, standard_library

VOCABULARY = 256


class Block(nnx.Module):
    """Attention and a two-layer network, each behind a norm and a residual."""

    def __init__(self, width: int, *, rngs: nnx.Rngs) -> None:
        self.norm_in = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            4, width, use_bias=False, decode=False, rngs=rngs
        )
        self.norm_out = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """Maps (B, L, D) to the same."""
        mask = nnx.make_causal_mask(x_BLD[..., 0])
        x_BLD += self.attention(self.norm_in(x_BLD), mask=mask)
        return x_BLD + self.down(nnx.gelu(self.up(self.norm_out(x_BLD))))


class GPT(nnx.Module):
    """Byte-level transformer with learned positions."""

    def __init__(self, layers: int, width: int, length: int, *, rngs: nnx.Rngs):
        self.tokens = nnx.Embed(VOCABULARY, width, rngs=rngs)
        self.positions = nnx.Embed(length, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, rngs=rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, VOCABULARY, use_bias=False, rngs=rngs)

    def __call__(self, tokens_BL: jax.Array) -> jax.Array:
        """Maps int32 tokens (B, L) to logits (B, L, V)."""
        positions = jnp.arange(tokens_BL.shape[1])[None]
        x_BLD = self.tokens(tokens_BL) + self.positions(positions)
        for block in self.blocks:
            x_BLD = block(x_BLD)
        return self.head(self.norm(x_BLD))


def loss_of(model: GPT, batch: dict[str, jax.Array]) -> jax.Array:
    """Mean cross-entropy per byte, in nats."""
    logits_BLV = model(batch["inputs"])
    return optax.softmax_cross_entropy_with_integer_labels(
        logits_BLV, batch["targets"]
    ).mean()


def train_step(
    model: GPT, optimizer: nnx.Optimizer, batch: dict[str, jax.Array]
) -> jax.Array:
    """One step on one device: changes both objects, returns the loss."""
    loss, grads = nnx.value_and_grad(loss_of)(model, batch)
    optimizer.update(model, grads)
    return loss


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name, default in [
        ("stage", 3),
        ("steps", 200),
        ("layers", 2),
        ("width", 128),
        ("length", 64),
        ("rows", 16),
        ("devices", 8),
    ]:
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args(arguments)
    jax.config.update("jax_num_cpu_devices", args.devices)

    def create() -> tuple[GPT, nnx.Optimizer]:
        model = GPT(args.layers, args.width, args.length, rngs=nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adamw(2e-3), wrt=nnx.Param)

    step = jzero.shard_train_step(train_step, stage=args.stage)
    model, optimizer = step.init(create)
    text = standard_library()
    shape = {"rows": args.rows, "length": args.length}
    data = batches(text[:-HELD_OUT_BYTES], **shape)
    for i in range(args.steps):
        loss = step(model, optimizer, step.shard_batch(data[i]))
        if i % 20 == 0:
            print(f"step {i:5d}  loss {loss:.4f}", flush=True)
    held_out = step.shard_batch(batches(text[-HELD_OUT_BYTES:], **shape)[0])
    loss = step.eval_step(loss_of)(model, held_out)
    kernel = model.blocks[0].up.kernel[...]
    print(f"a kernel of {kernel.shape} lies as {kernel.sharding.spec}")
    print(f"stage {args.stage} on {jax.device_count()} devices: held-out {loss:.4f}")


if __name__ == "__main__":
    main()
