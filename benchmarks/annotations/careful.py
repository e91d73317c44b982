"""The GPT of the figures as a careful person annotates it, without jzero.

Every block is edited: activations are constrained to the batch axis wherever the
partitioner could think otherwise. The step is edited as well: parameters are cast to
bfloat16 as shards, gathered there once at stages 1 and 2 and left to the partitioner
at stage 3, and from stage 2 on gradients are constrained to shards. Parameters have
the names of `tests/gpt_model.py`, so both train the same state.

Shape letters: B sequences, L tokens of each, D width, H heads, K width of a head, F
inner width, V vocabulary.

Lives here: `lower_careful`. Read next: `__main__.py`, which compares.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.annotations.arguments import lower_placed, place_state
from benchmarks.cases import Case

__all__ = ["build_careful", "lower_careful"]

Pin = Callable[[jax.Array], jax.Array]


class Block(nn.Module):
    """Attention and an MLP, every value of theirs pinned: (B, L, D) to (B, L, D)."""

    width: int
    num_heads: int
    pin: Pin

    @nn.compact
    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        pin = self.pin

        # Flax hands over what the signature names, the mask among it.
        @functools.wraps(nn.dot_product_attention)
        def attend(
            q_BLHK: jax.Array, k_BLHK: jax.Array, v_BLHK: jax.Array, **rest: Any
        ) -> jax.Array:
            return pin(
                nn.dot_product_attention(pin(q_BLHK), pin(k_BLHK), pin(v_BLHK), **rest)
            )

        y_BLD = pin(nn.LayerNorm(dtype=jnp.bfloat16)(x_BLD))
        mask = nn.make_causal_mask(jnp.ones(x_BLD.shape[:2]))
        attention = nn.MultiHeadDotProductAttention(
            self.num_heads,
            dtype=jnp.bfloat16,
            deterministic=True,
            attention_fn=attend,
        )
        x_BLD = pin(x_BLD + pin(attention(y_BLD, mask=mask)))
        y_BLD = pin(nn.LayerNorm(dtype=jnp.bfloat16)(x_BLD))
        y_BLF = pin(nn.Dense(4 * self.width, dtype=jnp.bfloat16)(y_BLD))
        y_BLF = pin(nn.gelu(y_BLF))
        return pin(x_BLD + pin(nn.Dense(self.width, dtype=jnp.bfloat16)(y_BLF)))


class GPT(nn.Module):
    """Token numbers (B, L) to logits (B, L, V), its blocks rematerialized."""

    vocab: int
    width: int
    num_heads: int
    num_layers: int
    is_scanned: bool
    pin: Pin

    @nn.compact
    def __call__(self, ids_BL: jax.Array) -> jax.Array:
        pin = self.pin
        x_BLD = pin(nn.Embed(self.vocab, self.width, dtype=jnp.bfloat16)(pin(ids_BL)))
        block: Any = nn.remat(Block, prevent_cse=not self.is_scanned)
        if self.is_scanned:
            stack = nn.scan(
                lambda module, carry, _: (pin(module(carry)), None),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=self.num_layers,
            )
            layers = block(self.width, self.num_heads, pin, name="layers")
            x_BLD, _ = stack(layers, x_BLD, None)
        else:
            for _ in range(self.num_layers):
                x_BLD = block(self.width, self.num_heads, pin)(x_BLD)
        x_BLD = pin(nn.LayerNorm(dtype=jnp.bfloat16)(x_BLD))
        head = nn.Dense(self.vocab, use_bias=False, dtype=jnp.bfloat16)
        return pin(head(x_BLD))


def build_careful(
    *,
    vocab: int,
    width: int,
    num_layers: int,
    num_heads: int,
    is_scanned: bool,
    stage: int,
    mesh: Mesh,
) -> Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]]:
    """Returns the annotated step, `(state, batch) -> (state, metrics)`.

    Args:
        vocab: Tokens that there are.
        width: Of the model.
        num_layers: Blocks.
        num_heads: Of attention.
        is_scanned: The blocks are stacked and scanned.
        stage: The ZeRO stage that the annotations are to give.
        mesh: One axis.
    """
    along_batch = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    whole = NamedSharding(mesh, PartitionSpec())

    def pin(x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, along_batch)

    model = GPT(vocab, width, num_heads, num_layers, is_scanned, pin)

    def step(state: Any, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
        shards = place_state(state, 3, mesh).params
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), state.params)
        if stage:
            # Cast as shards, so that what is gathered has 16 bits.
            params = jax.lax.with_sharding_constraint(params, shards)
        if 0 < stage < 3:
            params = jax.lax.with_sharding_constraint(params, whole)

        def loss_fn(params: Any) -> jax.Array:
            logits_BLV = pin(model.apply({"params": params}, batch["x"]))
            losses_BL = optax.softmax_cross_entropy_with_integer_labels(
                logits_BLV.astype(jnp.float32), batch["y"]
            )
            return losses_BL.mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        if stage >= 2:
            grads = jax.lax.with_sharding_constraint(grads, shards)
        grads = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), grads)
        return state.apply_gradients(grads=grads), {"loss": loss}

    return step


def lower_careful(
    case: Case, state: Any, batch: Any, *, stage: int, mesh: Mesh, vocab: int
) -> jax.stages.Lowered:
    """Lowers the annotated step of a case.

    Args:
        case: The model; of one micro-batch.
        state: Shapes of the state of `tests.gpt_model.build_gpt`.
        batch: Shapes of the batch; dim 0 is split over the mesh.
        stage: 0 replicates the state; 1 to 3 shard all of it at rest, as jzero does.
        mesh: One axis.
        vocab: Tokens of the model.

    Returns:
        The lowered step; the state is donated.

    Raises:
        ValueError: The case has several micro-batches.
    """
    if case.num_micro_batches != 1:
        raise ValueError("The annotated step has one micro-batch; so must the case.")
    step = build_careful(
        vocab=vocab,
        width=case.width,
        num_layers=case.num_layers,
        num_heads=max(1, case.width // 64),
        is_scanned=case.is_scanned,
        stage=stage,
        mesh=mesh,
    )
    state_placed = place_state(state, 3 if stage else 0, mesh)
    return lower_placed(step, state, batch, state_placed, mesh)
