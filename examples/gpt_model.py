"""A byte-level Flax linen GPT: rotary positions, its layers unrolled or scanned.

Shapes: B rows, L positions, D width, F inner width, H heads, K width of a head,
V bytes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

VOCABULARY = 256


def rotate(x_BLHK: jax.Array) -> jax.Array:
    """Turns pairs of features by angles that grow with the position (RoPE)."""
    half = x_BLHK.shape[-1] // 2
    rates = 100.0 ** (-jnp.arange(half) / half)
    angles = jnp.arange(x_BLHK.shape[1])[None, :, None, None] * rates[None, None, None]
    cos, sin = (f(angles).astype(x_BLHK.dtype) for f in (jnp.cos, jnp.sin))
    a, b = jnp.split(x_BLHK, 2, -1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


class Block(nn.Module):
    """Attention and a two-layer network, each behind a norm and a residual."""

    heads: int
    dtype: Any

    @nn.compact
    def __call__(self, x_BLD: jax.Array, _: None = None) -> tuple[jax.Array, None]:
        """Maps (B, L, D) to the same; the second value is what `nn.scan` wants."""
        width = x_BLD.shape[-1]
        h_BLD = nn.LayerNorm(dtype=self.dtype)(x_BLD)
        qkv = nn.Dense(3 * width, use_bias=False, dtype=self.dtype)(h_BLD)
        heads = (*x_BLD.shape[:2], self.heads, width // self.heads)
        q_BLHK, k_BLHK, v_BLHK = (a.reshape(heads) for a in jnp.split(qkv, 3, -1))
        a_BLHK = jax.nn.dot_product_attention(
            rotate(q_BLHK), rotate(k_BLHK), v_BLHK, is_causal=True
        )
        h_BLD = a_BLHK.reshape(x_BLD.shape)
        x_BLD += nn.Dense(width, use_bias=False, dtype=self.dtype)(h_BLD)
        h_BLD = nn.LayerNorm(dtype=self.dtype)(x_BLD)
        h_BLF = nn.gelu(nn.Dense(4 * width, dtype=self.dtype)(h_BLD))
        return x_BLD + nn.Dense(width, dtype=self.dtype)(h_BLF), None


class GPT(nn.Module):
    """Byte-level transformer; its layers unrolled or under `nn.scan`."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    scan: bool = False
    remat: bool = True
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, tokens_BL: jax.Array) -> jax.Array:
        """Maps int32 tokens (B, L) to float32 logits (B, L, V)."""
        x_BLD = nn.Embed(VOCABULARY, self.width, dtype=self.dtype)(tokens_BL)
        block: Any = Block
        if self.remat:
            block = nn.remat(Block, prevent_cse=not self.scan)
        if self.scan:
            stack = nn.scan(
                block,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=self.layers,
            )
            x_BLD, _ = stack(self.heads, self.dtype)(x_BLD, None)
        else:
            for _ in range(self.layers):
                x_BLD, _ = block(self.heads, self.dtype)(x_BLD)
        x_BLD = nn.LayerNorm(dtype=self.dtype)(x_BLD)
        logits_BLV = nn.Dense(VOCABULARY, use_bias=False, dtype=self.dtype)(x_BLD)
        return logits_BLV.astype(jnp.float32)
