"""Annotations that a careful person writes, beside jzero, compiled for H100s.

    python -m benchmarks.annotations                     # all, into docs/benchmarks.md
    python -m benchmarks.annotations --model unrolled    # some, into the terminal only
    python -m benchmarks.annotations --reuse             # what is missing in out/
    python -m benchmarks.annotations --made              # compiles nothing

The same GPT twice at every stage: edited by hand with sharding constraints
(`careful.py`), and as it is under jzero. Nothing runs: memory and collectives are the
compiler's, for GPUs that are not there. Every row is kept in `out/annotations`, so
that a run can go on where another was interrupted.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table

from benchmarks.cases import Case
from benchmarks.compiled import Figures, Way, compile_case
from benchmarks.document import markdown_table, write_part

__all__ = [
    "MODELS",
    "WAYS",
    "Compared",
    "Made",
    "Model",
    "load",
    "main",
    "render",
    "save",
    "summarize",
]

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "benchmarks.md"
FOLDER = ROOT / "out" / "annotations"
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
WAYS: tuple[Way, ...] = ("careful", "jzero")
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
class Made:
    """What one device holds and sends in one step, made one way.

    Attributes:
        resident_bytes: At rest.
        peak_bytes: What it must have.
        moved_units: Sent, in bfloat16 all-reduces of all gradients.
    """

    resident_bytes: int
    peak_bytes: int
    moved_units: float

    @property
    def cells(self) -> tuple[str, ...]:
        """At rest, peak, moved."""
        return (
            f"{self.resident_bytes / 1e6:.0f}",
            f"{self.peak_bytes / 1e6:.0f}",
            f"{self.moved_units:.2f}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One model at one stage on so many devices, made both ways."""

    num_devices: int
    stage: int
    num_params: int
    careful: Made
    jzero: Made

    @property
    def cells(self) -> tuple[str, ...]:
        """In the order of `HEADER`."""
        first = (str(self.num_devices), str(self.stage))
        return (*first, *self.careful.cells, *self.jzero.cells)


def summarize(careful: Figures, jzero: Figures, stage: int) -> Compared:
    """Keeps what the table shows."""
    made = [
        Made(
            resident_bytes=figures.memory.argument_bytes,
            peak_bytes=figures.memory.device_peak_bytes,
            moved_units=figures.units,
        )
        for figures in (careful, jzero)
    ]
    return Compared(
        num_devices=jzero.num_devices,
        stage=stage,
        num_params=jzero.num_params,
        careful=made[0],
        jzero=made[1],
    )


def save(path: Path, compared: Compared) -> None:
    """Writes a row as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(compared)))


def load(path: Path) -> Compared:
    """Reads what `save` wrote."""
    record = json.loads(path.read_text())
    ways = {way: Made(**record.pop(way)) for way in ("careful", "jzero")}
    return Compared(**record, **ways)


def render(rows: dict[str, Sequence[Compared]], today: datetime.date) -> str:
    """Writes this comparison's part of the document.

    Args:
        rows: By the name of the model.
        today: When it was compiled.
    """
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "flax"))
    parts = [f"{today.isoformat()}, {versions}. Compiled for H100s; nothing ran."]
    for name, compared in rows.items():
        num_params = compared[0].num_params
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
    parser.add_argument(
        "--reuse", action="store_true", help="take rows from out/ where they are"
    )
    parser.add_argument(
        "--made",
        action="store_true",
        help="compile nothing: write the rows in out/ into the document",
    )
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
                path = FOLDER / f"{name}-{num_devices}-{stage}.json"
                if args.made and not path.exists():
                    continue
                if not ((args.made or args.reuse) and path.exists()):
                    ways = [compile_case(case, stage, way=way) for way in WAYS]
                    save(path, summarize(*ways, stage))
                compared = load(path)
                rows.setdefault(name, []).append(compared)
                table.add_row(name, *compared.cells)
                print(name, *compared.cells, sep="  ", file=sys.stderr, flush=True)
    Console(width=None if sys.stdout.isatty() else 110).print(table)
    if not (args.model or args.devices or args.stage):
        text = render(rows, datetime.date.today())
        num_rows = sum(len(m.num_devices) * len(m.stages) for m in MODELS.values())
        num_made = sum(map(len, rows.values()))
        if num_made < num_rows:
            text += f"\n\n{num_made} of {num_rows} rows: this run was interrupted."
        write_part(DOCUMENT, PART, text)
        print(f"wrote {DOCUMENT.name}")


if __name__ == "__main__":
    main()
