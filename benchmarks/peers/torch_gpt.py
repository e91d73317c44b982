"""The model in torch; `flax_gpt.py` is the same arithmetic in Flax."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers.cases import Size

# What Flax calls the weights of a layer, and torch.
LEAVES = {
    "kernel": "weight",
    "scale": "weight",
    "embedding": "weight",
    "bias": "bias",
}


class Block(nn.Module):
    """Causal attention, then an MLP four times as wide, each after a norm."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.num_heads = size.num_heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (rows, tokens, width) to the same shape."""
        rows, num_tokens, width = x.shape
        qkv = self.qkv(self.norm_attention(x))
        heads = qkv.view(rows, num_tokens, 3 * self.num_heads, -1).transpose(1, 2)
        query, key, value = heads.chunk(3, dim=1)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, num_tokens, width))
        hidden = functional.gelu(self.up(self.norm_mlp(x)), approximate="tanh")
        return x + self.down(hidden)


class GPT(nn.Module):
    """Token numbers and their targets to the mean loss of all tokens."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocab, size.width)
        self.positions = nn.Embedding(size.num_tokens, size.width)
        self.num_layers = size.num_layers
        for i in range(size.num_layers):
            self.add_module(f"block_{i}", Block(size))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocab, bias=False)

    def blocks(self) -> list[nn.Module]:
        """The blocks in their order."""
        return [self.get_submodule(f"block_{i}") for i in range(self.num_layers)]

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Maps two (rows, tokens) to a scalar."""
        places = torch.arange(ids.shape[1])[None]
        x = self.words(ids) + self.positions(places)
        for block in self.blocks():
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def load_weights(model: GPT, weights: dict[str, np.ndarray]) -> None:
    """Copies the common initial weights into the model; kernels are transposed."""
    state: dict[str, torch.Tensor] = {}
    for path, value in weights.items():
        *folders, leaf = path.split("/")
        array = value.T if leaf == "kernel" else value
        state[".".join([*folders, LEAVES[leaf]])] = torch.from_numpy(array.copy())
    model.load_state_dict(state, strict=True)
