"""Flax linen transformers in a TrainState: written out, scanned, rematerialized."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from tests.models.case import Case, double, tokens

WIDTH, VOCAB, NUM_LAYERS = 16, 32, 3


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, _: None = None) -> tuple[jax.Array, None]:
        kw: dict[str, Any] = {"dtype": jnp.float64}
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        # Without the norm, the gradient of a key's bias is zero but for rounding:
        # its moments would hold nothing else.
        y = nn.LayerNorm(**kw)(x)
        x = x + nn.MultiHeadDotProductAttention(
            2, deterministic=True, normalize_qk=True, **kw
        )(y, mask=mask)
        y = nn.gelu(nn.Dense(4 * WIDTH, **kw)(nn.LayerNorm(**kw)(x)))
        return x + nn.Dense(WIDTH, **kw)(y), None


class Transformer(nn.Module):
    """A causal language model; its head is tied to its embedding on demand."""

    is_scanned: bool
    has_remat: bool
    is_tied: bool = False

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        embed = nn.Embed(VOCAB, WIDTH, dtype=jnp.float64)
        x = embed(ids)
        block: Any = Block
        if self.has_remat:
            block = nn.remat(Block, prevent_cse=not self.is_scanned)
        if self.is_scanned:
            layers = nn.scan(
                block,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=NUM_LAYERS,
            )
            x, _ = layers()(x, None)
        else:
            for _ in range(NUM_LAYERS):
                x, _ = block()(x)
        if self.is_tied:
            return embed.attend(x)
        return nn.Dense(VOCAB, use_bias=False, dtype=jnp.float64)(x)


def _transformer(**kw: Any) -> Case:
    model = Transformer(**kw)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))

    def make() -> tuple[TrainState]:
        params = double(model.init(jax.random.key(0), tokens(0))["params"])
        return (TrainState.create(apply_fn=model.apply, params=params, tx=tx),)

    def train_step(state: TrainState, batch: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            logits = state.apply_fn({"params": params}, batch["ids"])
            losses = optax.softmax_cross_entropy_with_integer_labels(
                logits[:, :-1], batch["ids"][:, 1:]
            )
            return losses.mean()

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), {"loss": value}

    return Case(step=train_step, make=make, data=lambda i: ({"ids": tokens(i)},))


TRANSFORMERS = {
    "unrolled": _transformer(is_scanned=False, has_remat=False),
    "unrolled_remat_tied": _transformer(is_scanned=False, has_remat=True, is_tied=True),
    "scanned": _transformer(is_scanned=True, has_remat=False),
    "scanned_remat_tied": _transformer(is_scanned=True, has_remat=True, is_tied=True),
}
