"""A Llama-shaped model to plan for: RMS norms, rotary positions, gated networks.

    jzero plan benchmarks/llama.py:build --pod h100:8x8 --stage 3

The default is 7 B: 32 layers of width 4096 in one scan, rematerialized, computing in
bfloat16 with float32 parameters and AdamW. Shapes: B rows, L positions, D width, F
inner width, H heads, K width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

__all__ = ["Llama", "build"]


def _rotate(x_BLHK: jax.Array) -> jax.Array:
    half = x_BLHK.shape[-1] // 2
    rates = 10_000.0 ** (-jnp.arange(half) / half)
    angles = jnp.arange(x_BLHK.shape[1])[None, :, None, None] * rates[None, None, None]
    cos, sin = (f(angles).astype(x_BLHK.dtype) for f in (jnp.cos, jnp.sin))
    a, b = jnp.split(x_BLHK, 2, -1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


class Block(nn.Module):
    """Attention and a gated network, each behind a norm and a residual."""

    heads: int
    inner: int

    @nn.compact
    def __call__(self, x_BLD: jax.Array, _: None = None) -> tuple[jax.Array, None]:
        """Maps (B, L, D) to the same."""

        def dense(size: int, name: str) -> Callable[[jax.Array], jax.Array]:
            return nn.Dense(size, use_bias=False, dtype=jnp.bfloat16, name=name)

        width = x_BLD.shape[-1]
        h_BLD = nn.RMSNorm(dtype=jnp.bfloat16)(x_BLD)
        heads = (*x_BLD.shape[:2], self.heads, width // self.heads)
        q_BLHK, k_BLHK, v_BLHK = (
            dense(width, name)(h_BLD).reshape(heads) for name in ("wq", "wk", "wv")
        )
        a_BLHK = jax.nn.dot_product_attention(
            _rotate(q_BLHK), _rotate(k_BLHK), v_BLHK, is_causal=True
        )
        x_BLD += dense(width, "wo")(a_BLHK.reshape(x_BLD.shape))
        h_BLD = nn.RMSNorm(dtype=jnp.bfloat16)(x_BLD)
        gate_BLF = nn.silu(dense(self.inner, "w1")(h_BLD))
        h_BLF = gate_BLF * dense(self.inner, "w3")(h_BLD)
        return x_BLD + dense(width, "w2")(h_BLF), None


class Llama(nn.Module):
    """The model; its layers are stacked and scanned."""

    vocab: int = 32_000
    width: int = 4096
    inner: int = 11_008
    heads: int = 32
    layers: int = 32
    remat: bool = True

    @nn.compact
    def __call__(self, ids_BL: jax.Array) -> jax.Array:
        """Maps int32 tokens (B, L) to float32 logits (B, L, V)."""
        x_BLD = nn.Embed(self.vocab, self.width, dtype=jnp.bfloat16)(ids_BL)
        stack = nn.scan(
            nn.remat(Block, prevent_cse=False) if self.remat else Block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=self.layers,
        )
        x_BLD, _ = stack(self.heads, self.inner)(x_BLD, None)
        x_BLD = nn.RMSNorm(dtype=jnp.bfloat16)(x_BLD)
        head = nn.Dense(self.vocab, use_bias=False, dtype=jnp.bfloat16)
        return head(x_BLD).astype(jnp.float32)


def train_step(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Any]]:
    """One step on one device, as anybody would write it."""

    def loss_fn(params: Any) -> jax.Array:
        logits_BLV = state.apply_fn({"params": params}, batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(
            logits_BLV, batch["y"]
        ).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), {"loss": loss}


def build(
    *, rows: int = 1, length: int = 2048, remat: bool = True, **model: int
) -> tuple[Any, ...]:
    """Returns (step_fn, create_state, sample_args, batch) for `jzero plan`.

    Args:
        rows: Sequences of one device.
        length: Tokens of each.
        remat: Compute a block's activations again in backward instead of keeping them.
        **model: Fields of `Llama`.
    """
    llama = Llama(remat=remat, **model)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4, b2=0.95))

    def create_state(key: jax.Array, ids_BL: jax.Array) -> TrainState:
        params = llama.init(key, ids_BL)["params"]
        return TrainState.create(apply_fn=llama.apply, params=params, tx=tx)

    ids = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    sample_args = (jax.random.key(0), jax.ShapeDtypeStruct((1, 8), jnp.int32))
    return train_step, create_state, sample_args, {"x": ids, "y": ids}
