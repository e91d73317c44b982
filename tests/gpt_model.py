"""The GPT of the figures: Flax linen, bf16 compute over f32 parameters.

Shape letters: B sequences, L tokens of each, D width, H heads, V vocabulary.

The head is not tied to the embedding. Each block is rematerialized; the blocks are
written out one after the other, or stacked and scanned. AdamW after a clip of the
global norm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

Batch = dict[str, jax.Array]
StepFunction = Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]


class Block(nn.Module):
    """Causal attention, then an MLP four times as wide: (B, L, D) to (B, L, D)."""

    width: int
    num_heads: int
    dtype: Any

    @nn.compact
    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        y_BLD = nn.LayerNorm(dtype=self.dtype)(x_BLD)
        mask = nn.make_causal_mask(jnp.ones(x_BLD.shape[:2]))
        x_BLD = x_BLD + nn.MultiHeadDotProductAttention(
            self.num_heads, dtype=self.dtype, deterministic=True
        )(y_BLD, mask=mask)
        y_BLD = nn.LayerNorm(dtype=self.dtype)(x_BLD)
        y_BLF = nn.gelu(nn.Dense(4 * self.width, dtype=self.dtype)(y_BLD))
        return x_BLD + nn.Dense(self.width, dtype=self.dtype)(y_BLF)


class GPT(nn.Module):
    """Token numbers (B, L) to logits (B, L, V)."""

    vocab: int
    width: int
    num_heads: int
    num_layers: int
    is_scanned: bool = False
    has_remat: bool = True
    dtype: Any = jnp.bfloat16

    @nn.compact
    def __call__(self, ids_BL: jax.Array) -> jax.Array:
        x_BLD = nn.Embed(self.vocab, self.width, dtype=self.dtype)(ids_BL)
        block: Any = Block
        if self.has_remat:
            block = nn.remat(Block, prevent_cse=not self.is_scanned)
        if self.is_scanned:
            stack = nn.scan(
                lambda module, carry, _: (module(carry), None),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=self.num_layers,
            )
            layers = block(self.width, self.num_heads, self.dtype, name="layers")
            x_BLD, _ = stack(layers, x_BLD, None)
        else:
            for _ in range(self.num_layers):
                x_BLD = block(self.width, self.num_heads, self.dtype)(x_BLD)
        x_BLD = nn.LayerNorm(dtype=self.dtype)(x_BLD)
        return nn.Dense(self.vocab, use_bias=False, dtype=self.dtype)(x_BLD)


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTStep:
    """A model with its training step.

    Attributes:
        create: Makes the state from a key and token numbers.
        step: One optimizer step on `{"x": (B, L), "y": (B, L)}`.
    """

    create: Callable[[jax.Array, jax.Array], TrainState]
    step: StepFunction

    def state_shapes(self) -> TrainState:
        """The state as shapes and dtypes; nothing is computed."""
        ids = jax.ShapeDtypeStruct((1, 8), jnp.int32)
        return jax.eval_shape(self.create, jax.random.key(0), ids)


def build_gpt(
    *,
    vocab: int = 32_000,
    width: int,
    num_layers: int,
    num_heads: int | None = None,
    is_scanned: bool = False,
    has_remat: bool = True,
    dtype: Any = jnp.bfloat16,
    learning_rate: float = 1e-3,
    num_micro_batches: int = 1,
) -> GPTStep:
    """Builds the model and its step; heads of 64 unless their number is given.

    With several micro-batches the step cuts its batch into that many and adds up
    their gradients in a scan of its own.
    """
    model = GPT(
        vocab,
        width,
        num_heads or max(1, width // 64),
        num_layers,
        is_scanned,
        has_remat,
        dtype,
    )
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(learning_rate, weight_decay=0.1)
    )

    def create(key: jax.Array, ids_BL: jax.Array) -> TrainState:
        params = model.init(key, ids_BL)["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)

    def one_batch(state: TrainState, batch: Batch) -> tuple[jax.Array, Any]:
        def loss_fn(params: Any) -> jax.Array:
            logits_BLV = state.apply_fn({"params": params}, batch["x"])
            losses_BL = optax.softmax_cross_entropy_with_integer_labels(
                logits_BLV.astype(jnp.float32), batch["y"]
            )
            return losses_BL.mean()

        return jax.value_and_grad(loss_fn)(state.params)

    def many_batches(state: TrainState, batch: Batch) -> tuple[jax.Array, Any]:
        batches = jax.tree.map(
            lambda ids: ids.reshape(num_micro_batches, -1, ids.shape[-1]), batch
        )

        def add(total: Any, batch: Batch) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, one_batch(state, batch)), None

        zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, state.params)
        total, _ = jax.lax.scan(add, zeros, batches)
        return jax.tree.map(lambda value: value / num_micro_batches, total)

    grad_fn = one_batch if num_micro_batches == 1 else many_batches

    def step(
        state: TrainState, batch: Batch
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        loss, grads = grad_fn(state, batch)
        return state.apply_gradients(grads=grads), {"loss": loss}

    return GPTStep(create=create, step=step)


def batch_shapes(num_sequences: int, num_tokens: int) -> dict[str, Any]:
    """The batch as shapes and dtypes: two leaves (B, L)."""
    ids = jax.ShapeDtypeStruct((num_sequences, num_tokens), jnp.int32)
    return {"x": ids, "y": ids}


def count_params(state: Any) -> int:
    """How many elements all parameters have."""
    return sum(leaf.size for leaf in jax.tree.leaves(state.params))
