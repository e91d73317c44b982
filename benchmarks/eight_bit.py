"""The demo's GPT with 8-bit and 16-bit optimizer states, beside float32.

    python -m benchmarks.eight_bit                # 500 steps; writes docs/kernels.md
    python -m benchmarks.eight_bit --steps 50     # prints only

Everything is the same but the optimizer: weights, batches, rates. On one CPU device.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import jzero
from examples.gpt import build, evaluate, train_step
from examples.gpt_model import GPT
from examples.text import HELD_OUT_BYTES, batches, standard_library

__all__ = ["Run", "compare", "main", "render"]

DOCUMENT = Path(__file__).parents[1] / "docs" / "kernels.md"
BEGIN, END = "<!-- eight-bit:begin -->", "<!-- eight-bit:end -->"
NUM_STEPS = 500
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "float32 moments": {},
    "8-bit codes": {"state": "int8"},
    "8-bit codes, embedding too": {"state": "int8", "keep_float32": ()},
    "8-bit codes everywhere": {
        "state": "int8",
        "keep_float32": (),
        "min_coded_elems": 0,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one training came to.

    Attributes:
        name: Of the settings.
        loss: Mean training loss of the last 20 steps, nats per byte.
        held_out: Mean loss on 100 000 bytes that were not trained on.
        state_bytes: Bytes of optimizer state for each parameter.
        coded_bytes: The same for parameters whose moments are codes; None if none.
    """

    name: str
    loss: float
    held_out: float
    state_bytes: float
    coded_bytes: float | None


def compare(
    num_steps: int,
    names: Sequence[str] = tuple(SETTINGS),
    *,
    rows: int = 16,
    length: int = 64,
    **model: Any,
) -> list[Run]:
    """Trains once with each setting.

    Args:
        num_steps: How long.
        names: Of the settings.
        rows: Of a batch.
        length: Bytes in a row.
        **model: Fields of `examples.gpt_model.GPT`.
    """
    text = standard_library()
    data = batches(text[:-HELD_OUT_BYTES], rows=rows, length=length)
    held_out = batches(text[-HELD_OUT_BYTES:], rows=64, length=length)
    num_held_out = HELD_OUT_BYTES // (64 * length)
    built = build(steps=num_steps, rows=rows, length=length, **model)
    first = jax.jit(built.create_state)(*built.sample_args)
    gpt, step, judge = GPT(**model), jax.jit(train_step), jax.jit(evaluate)
    runs = []
    for name in names:
        # A constant rate: warm-up is not what is compared.
        tx = jzero.optim.adamw(2e-3, b2=0.98, clip_norm=1.0, **SETTINGS[name])
        state: Any = jzero.TrainState.create(
            apply_fn=gpt.apply, params=first.params, tx=tx
        )
        losses = []
        for i in range(num_steps):
            state, metrics = step(state, data[i])
            losses.append(metrics["loss"])
        runs.append(
            Run(
                name=name,
                loss=float(np.mean([float(loss) for loss in losses[-20:]])),
                held_out=float(
                    np.mean([judge(state, held_out[i]) for i in range(num_held_out)])
                ),
                state_bytes=_num_bytes(state.opt_state) / _num_params(state.params),
                coded_bytes=_coded_bytes(state),
            )
        )
    return runs


def _num_bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _num_params(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _coded_bytes(state: Any) -> float | None:
    """Bytes of codes and their scales for each element that has some."""
    moments = jax.tree.leaves((state.opt_state.mu, state.opt_state.nu))
    codes = [leaf for leaf in moments if leaf.dtype.itemsize == 1]
    if not codes:
        return None
    scales = (state.opt_state.mu_scales, state.opt_state.nu_scales)
    num_coded = _num_params(codes) / 2
    return (_num_bytes(codes) + _num_bytes(scales)) / num_coded


def render(runs: Sequence[Run], num_steps: int) -> str:
    """Returns the table as Markdown."""
    lines = [
        f"Loss in nats per byte after {num_steps} steps of the demo's GPT, from the "
        "same weights on the same batches; bytes of optimizer state for each "
        "parameter, of all and of those whose moments are codes.",
        "",
        "| moments | training loss | against float32 | held-out loss | bytes | "
        "bytes, codes |",
        "|---|---|---|---|---|---|",
    ]
    base = runs[0]
    for run in runs:
        coded = "-" if run.coded_bytes is None else f"{run.coded_bytes:.3f}"
        change = 100 * (run.loss / base.loss - 1)
        lines.append(
            f"| {run.name} | {run.loss:.4f} | {change:+.2f} % | {run.held_out:.4f} "
            f"| {run.state_bytes:.3f} | {coded} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=NUM_STEPS)
    steps = parser.parse_args(arguments).steps
    table = render(compare(steps), steps)
    print(table)
    if steps == NUM_STEPS:
        before, rest = DOCUMENT.read_text().split(BEGIN)
        after = rest.split(END)[1]
        DOCUMENT.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}")


if __name__ == "__main__":
    main()
