"""Which tensor goes into which file, and the index that says so.

Lives here: the split of tensors over files of bounded size, their names, and the
index, all as the Hugging Face hub has them, so that its readers find their way. May
import: `tensor_file.py`. Read next: `consolidating.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jzero.checkpoint.tensor_file import Tensor

__all__ = [
    "INDEX_NAME",
    "Shard",
    "about_text",
    "index_text",
    "is_output_name",
    "split_shards",
]

INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file.

    Attributes:
        name: Its name.
        tensors: What it holds.
    """

    name: str
    tensors: tuple[Tensor, ...]


def split_shards(tensors: Iterable[Tensor], *, max_bytes: int) -> tuple[Shard, ...]:
    """Splits tensors over files, in order.

    Args:
        tensors: All tensors.
        max_bytes: The most bytes of tensors in a file; a larger tensor has a file to
            itself.

    Returns:
        The files, one at least.

    Example:
        >>> import numpy as np
        >>> w = [Tensor(name=n, dtype=np.dtype("u1"), shape=(6,)) for n in "ab"]
        >>> [shard.name for shard in split_shards(w, max_bytes=10)]
        ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors']
        >>> [shard.name for shard in split_shards(w, max_bytes=12)]
        ['model.safetensors']
    """
    groups: list[list[Tensor]] = [[]]
    filled_bytes = 0
    for tensor in tensors:
        if groups[-1] and filled_bytes + tensor.size_bytes > max_bytes:
            groups.append([])
            filled_bytes = 0
        groups[-1].append(tensor)
        filled_bytes += tensor.size_bytes
    if len(groups) == 1:
        return (Shard(name="model.safetensors", tensors=tuple(groups[0])),)
    return tuple(
        Shard(
            name=f"model-{number:05d}-of-{len(groups):05d}.safetensors",
            tensors=tuple(group),
        )
        for number, group in enumerate(groups, 1)
    )


def about_text(about: Mapping[str, Any]) -> dict[str, str]:
    """Builds what each file says about itself: texts, for the format has no others.

    Args:
        about: What is known of the tensors beside their names.

    Example:
        >>> about_text({"step": 3})
        {'format': 'flax', 'jzero': '{"step":3}'}
    """
    # The hub's word for arrays in the layout of JAX, whatever the library of layers.
    return {"format": "flax", "jzero": json.dumps(dict(about), separators=(",", ":"))}


def index_text(shards: Sequence[Shard], about: Mapping[str, Any]) -> str:
    """Builds the index: which tensor lies in which file.

    Args:
        shards: The files.
        about: What is known of the tensors beside it.
    """
    tensors = [tensor for shard in shards for tensor in shard.tensors]
    total_bytes = sum(tensor.size_bytes for tensor in tensors)
    weight_map = {
        tensor.name: shard.name for shard in shards for tensor in shard.tensors
    }
    index = {
        "metadata": {"total_size": total_bytes, "jzero": dict(about)},
        "weight_map": weight_map,
    }
    return json.dumps(index, indent=1)


def is_output_name(name: str) -> bool:
    """Says whether a file has a name that consolidating gives.

    Example:
        >>> is_output_name("model-00001-of-00002.safetensors"), is_output_name("a.txt")
        (True, False)
    """
    is_shard = name.startswith("model") and name.endswith(".safetensors")
    return is_shard or name == INDEX_NAME
