"""The model in Flax; `torch_gpt.py` is the same arithmetic in torch.

Shape letters: B sequences, L tokens of each, D width, H heads, K width of a head.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks.peers.cases import Size


class Block(nn.Module):
    """Causal attention, then an MLP four times as wide, each after a norm."""

    num_heads: int
    dtype: Any

    @nn.compact
    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """Maps (B, L, D) to (B, L, D)."""
        B, L, D = x_BLD.shape
        h_BLD = nn.LayerNorm(epsilon=1e-5, dtype=self.dtype, name="norm_attention")(
            x_BLD
        )
        qkv = nn.Dense(3 * D, dtype=self.dtype, name="qkv")(h_BLD)
        q, k, v = jnp.split(qkv.reshape(B, L, 3 * self.num_heads, -1), 3, axis=2)
        a_BLHK = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        a_BLD = a_BLHK.reshape(B, L, D)
        x_BLD = x_BLD + nn.Dense(D, dtype=self.dtype, name="out")(a_BLD)
        h_BLD = nn.LayerNorm(epsilon=1e-5, dtype=self.dtype, name="norm_mlp")(x_BLD)
        h_BLF = nn.gelu(nn.Dense(4 * D, dtype=self.dtype, name="up")(h_BLD))
        return x_BLD + nn.Dense(D, dtype=self.dtype, name="down")(h_BLF)


class GPT(nn.Module):
    """Token numbers (B, L) to logits (B, L, vocabulary)."""

    size: Size
    dtype: Any

    @nn.compact
    def __call__(self, ids_BL: jax.Array) -> jax.Array:
        """Maps (B, L) to logits (B, L, vocabulary)."""
        size, dtype = self.size, self.dtype
        words = nn.Embed(size.vocab, size.width, dtype=dtype, name="words")
        positions = nn.Embed(size.num_tokens, size.width, dtype=dtype, name="positions")
        places_BL = jnp.arange(ids_BL.shape[1])[None]
        x_BLD = words(ids_BL) + positions(places_BL)
        for i in range(size.num_layers):
            x_BLD = Block(size.num_heads, dtype, name=f"block_{i}")(x_BLD)
        x_BLD = nn.LayerNorm(epsilon=1e-5, dtype=dtype, name="norm")(x_BLD)
        head = nn.Dense(size.vocab, use_bias=False, dtype=dtype, name="head")
        return head(x_BLD)
