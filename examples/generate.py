"""Writes text with weights that jzero trained, in plain Flax: jzero is not needed.

    python -m examples.generate out/resume/model

The folder is what `jzero ckpt consolidate` makes: safetensors files, whose names are
the paths of the Flax variables, and an index. Shapes: B rows, L positions, V bytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import traverse_util
from safetensors.flax import load_file

from examples.gpt_model import GPT

LENGTH = 128


def load(folder: Path) -> Any:
    """Returns the variables in the files of a folder."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    flat: dict[str, jax.Array] = {}
    for name in sorted(set(index["weight_map"].values())):
        flat |= load_file(str(folder / name))
    return traverse_util.unflatten_dict(flat, sep="/")


def write(
    variables: Any, tokens_BL: jax.Array, start: jax.Array, key: jax.Array
) -> jax.Array:
    """Fills the positions from `start` on with bytes drawn from the model."""
    params = variables["params"]
    width = params["Embed_0"]["embedding"].shape[1]
    num_layers = sum("Block_" in name for name in params)
    gpt = GPT(layers=num_layers, width=width)

    def draw(i: jax.Array, tokens_BL: jax.Array) -> jax.Array:
        logits_BLV: Any = gpt.apply(variables, tokens_BL)
        logits_BV = jax.lax.dynamic_index_in_dim(logits_BLV, i - 1, 1, keepdims=False)
        drawn_B = jax.random.categorical(jax.random.fold_in(key, i), logits_BV / 0.6)
        return tokens_BL.at[:, i].set(drawn_B)

    return jax.lax.fori_loop(start, tokens_BL.shape[1], draw, tokens_BL)


def arguments_of(prompt: str) -> tuple[np.ndarray, np.int32, jax.Array]:
    """Returns what `write` takes beside the variables."""
    tokens = np.zeros((1, LENGTH), np.int32)
    tokens[0, : len(prompt)] = list(prompt.encode())
    return tokens, np.int32(len(prompt)), jax.random.key(0)


def text_of(tokens_BL: jax.Array) -> str:
    """Returns the bytes of the first row as text."""
    return bytes(np.asarray(tokens_BL)[0].astype(np.uint8)).decode("ascii", "replace")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="of safetensors files")
    parser.add_argument("--prompt", default="    def __init__(self")
    settings = parser.parse_args(arguments)
    variables = load(settings.folder)
    print(text_of(jax.jit(write)(variables, *arguments_of(settings.prompt))))


if __name__ == "__main__":
    main()
