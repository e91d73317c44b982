"""Annotations that a careful person writes, beside jzero, compiled for H100s.

    python -m benchmarks.annotations                     # all, into docs/benchmarks.md
    python -m benchmarks.annotations --model unrolled    # some, into the terminal only

The same GPT twice at every stage: edited by hand with sharding constraints
(`careful.py`), and as it is under jzero. Nothing runs: memory and collectives are the
compiler's, for GPUs that are not there.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table

from benchmarks.cases import Case
from benchmarks.compiled import Figures, compile_case
from benchmarks.document import markdown_table, write_part

__all__ = ["MODELS", "Compared", "Model", "compare", "main", "render"]

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
PART = "annotations"
HEADER = (
    "devices",
    "stage",
    "at rest MB",
    "peak MB",
    "moved",
    "jzero: at rest",
    "peak",
    "moved",
)
_PODS = {8: "h100:1x8", 64: "h100:8x8", 1024: "h100:128x8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model and where it is compared.

    Attributes:
        title: In words.
        case: The model; its pod is replaced by those of `num_devices`.
        num_devices: Sizes of pods.
        stages: ZeRO stages.
    """

    title: str
    case: Case
    num_devices: tuple[int, ...]
    stages: tuple[int, ...] = (0, 1, 2, 3)


MODELS = {
    "unrolled": Model(
        title="4 blocks of width 1024, unrolled",
        case=Case(pod="", num_layers=4, width=1024),
        num_devices=(8, 64),
    ),
    "scanned": Model(
        title="16 blocks of width 2048, scanned",
        case=Case(pod="", num_layers=16, width=2048, is_scanned=True),
        num_devices=(8, 64, 1024),
    ),
    "trillion": Model(
        title="128 blocks of width 25 600, scanned, one sequence per device",
        case=Case(
            pod="",
            num_layers=128,
            width=25_600,
            is_scanned=True,
            sequences_per_device=1,
        ),
        num_devices=(1024,),
        stages=(3,),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One model at one stage on so many devices, made both ways."""

    stage: int
    careful: Figures
    jzero: Figures

    @property
    def cells(self) -> tuple[str, ...]:
        """In the order of `HEADER`."""
        return (
            str(self.jzero.num_devices),
            str(self.stage),
            *_cells(self.careful),
            *_cells(self.jzero),
        )


def compare(case: Case, stage: int, *, vocab: int = 32_000) -> Compared:
    """Compiles a case at a stage both ways."""
    return Compared(
        stage=stage,
        careful=compile_case(case, stage, way="careful", vocab=vocab),
        jzero=compile_case(case, stage, vocab=vocab),
    )


def render(rows: dict[str, Sequence[Compared]], today: datetime.date) -> str:
    """Writes this comparison's part of the document.

    Args:
        rows: By the name of the model.
        today: When it was compiled.
    """
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "flax"))
    parts = [f"{today.isoformat()}, {versions}. Compiled for H100s; nothing ran."]
    for name, compared in rows.items():
        num_params = compared[0].jzero.num_params
        size = f"{num_params / 1e6:.0f} M"
        if num_params > 1e11:
            size = f"{num_params / 1e12:.2f} T"
        parts.append(f"**{MODELS[name].title}: {size} parameters**")
        parts.append(markdown_table(HEADER, [row.cells for row in compared]))
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compares, prints, and writes the document if nothing was left out."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.annotations",
        description=(__doc__ or "").split("\n")[0],
    )
    parser.add_argument("--model", action="append", choices=list(MODELS))
    parser.add_argument("--devices", action="append", type=int, choices=list(_PODS))
    parser.add_argument("--stage", action="append", type=int, choices=range(4))
    args = parser.parse_args(arguments)
    # Keeps JAX off GPUs, present or not. It looks at the first use of a device.
    jax.config.update("jax_platforms", "cpu")
    table = Table(*("model", *HEADER))
    rows: dict[str, list[Compared]] = {}
    for name in args.model or MODELS:
        model = MODELS[name]
        for num_devices in args.devices or model.num_devices:
            case = replace(model.case, pod=_PODS[num_devices])
            for stage in args.stage or model.stages:
                compared = compare(case, stage)
                rows.setdefault(name, []).append(compared)
                table.add_row(name, *compared.cells)
                print(name, *compared.cells, sep="  ", file=sys.stderr, flush=True)
    Console(width=None if sys.stdout.isatty() else 110).print(table)
    if not (args.model or args.devices or args.stage):
        write_part(DOCUMENT, PART, render(rows, datetime.date.today()))
        print(f"wrote {DOCUMENT.name}")


def _cells(figures: Figures) -> tuple[str, ...]:
    memory = figures.memory
    return (
        f"{memory.argument_bytes / 1e6:.0f}",
        f"{memory.device_peak_bytes / 1e6:.0f}",
        f"{figures.units:.2f}",
    )


if __name__ == "__main__":
    main()
