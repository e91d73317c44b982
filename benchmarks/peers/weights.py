"""The initial weights that all start from, under names that both models share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.cases import Size

STANDARD_DEVIATION = 0.02


def shapes(size: Size) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each weight by its path; kernels are (in, out)."""
    width = size.width

    def dense(name: str, wide_in: int, wide_out: int) -> dict[str, tuple[int, ...]]:
        return {f"{name}/kernel": (wide_in, wide_out), f"{name}/bias": (wide_out,)}

    def norm(name: str) -> dict[str, tuple[int, ...]]:
        return {f"{name}/scale": (width,), f"{name}/bias": (width,)}

    found: dict[str, tuple[int, ...]] = {
        "words/embedding": (size.vocab, width),
        "positions/embedding": (size.num_tokens, width),
    }
    for i in range(size.num_layers):
        found |= norm(f"block_{i}/norm_attention")
        found |= dense(f"block_{i}/qkv", width, 3 * width)
        found |= dense(f"block_{i}/out", width, width)
        found |= norm(f"block_{i}/norm_mlp")
        found |= dense(f"block_{i}/up", width, 4 * width)
        found |= dense(f"block_{i}/down", 4 * width, width)
    return found | norm("norm") | {"head/kernel": (width, size.vocab)}


def initial(size: Size, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns normal kernels and embeddings, scales of 1 and biases of 0, float32."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for name, shape in shapes(size).items():
        if name.endswith("/scale"):
            found[name] = np.ones(shape, np.float32)
        elif name.endswith("/bias"):
            found[name] = np.zeros(shape, np.float32)
        else:
            normal = rng.standard_normal(shape, dtype=np.float32)
            found[name] = normal * np.float32(STANDARD_DEVIATION)
    return found


def save(path: Path, weights: dict[str, np.ndarray]) -> None:
    """Writes weights where `load` finds them."""
    arrays: dict[str, Any] = dict(weights)
    np.savez(path, **arrays)


def load(path: Path) -> dict[str, np.ndarray]:
    """Reads what `save` wrote."""
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}
