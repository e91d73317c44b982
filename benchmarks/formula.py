"""What reports say, against the formula and a count by hand.

    python -m benchmarks.formula                          # all, into docs/benchmarks.md
    python -m benchmarks.formula --devices 64 --stage 3   # some, into the terminal only
    python -m benchmarks.formula --reuse                  # what is missing in out/
    python -m benchmarks.formula --made                   # compiles nothing

A small GPT, unrolled and scanned, at every stage for 8, 64 and 1024 GPUs that are not
there. Nothing runs. Resident bytes and bytes moved are counted here by other means
than the report's. The tests compile some of these rows again. Every row is kept in
`out/formula`, so that a run can go on where another was interrupted. Read next:
`jzero/audit/formula.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

import jzero
from benchmarks.document import markdown_table, write_part
from jzero.audit.pods import pod_mesh
from jzero.audit.step_report import StepReport
from tests.gpt_model import batch_shapes, build_gpt

__all__ = ["PODS", "STAGES", "Row", "count_row", "main", "moved_by_hand", "render"]

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "benchmarks.md"
FOLDER = ROOT / "out" / "formula"
PART = "formula"
PODS = {8: "h100:1x8", 64: "h100:8x8", 1024: "h100:128x8"}
STAGES = (0, 1, 2, 3)
HEADER = (
    "devices, blocks, stage",
    "resident, by hand",
    "report",
    "report / hand",
    "moved, by hand",
    "report",
    "report / hand",
    "report / formula",
)
NUM_TOKENS = 128
_THRESHOLD = 2**14


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One compiled step beside what was counted by hand, in bytes of one device.

    Attributes:
        num_devices: Devices.
        is_scanned: The blocks are stacked and scanned.
        stage: The ZeRO stage.
        resident_bytes: Of parameters, moments and batch, by hand.
        moved_bytes: Sent per step, by hand.
        report: The report.
    """

    num_devices: int
    is_scanned: bool
    stage: int
    resident_bytes: int
    moved_bytes: float
    report: StepReport

    @property
    def reported_bytes(self) -> int:
        """What the report has at rest, over all roles."""
        return sum(role.compiled_bytes for role in self.report.resident)

    @property
    def name(self) -> str:
        """In words."""
        blocks = "scanned" if self.is_scanned else "unrolled"
        return f"{self.num_devices}, {blocks}, {self.stage}"

    @property
    def cells(self) -> tuple[str, ...]:
        """In the order of `HEADER`."""
        moved, formula = self.report.moved_bytes, self.report.traffic.moved_bytes
        return (
            self.name,
            f"{self.resident_bytes:,}",
            f"{self.reported_bytes:,}",
            f"{self.reported_bytes / self.resident_bytes:.4f}",
            f"{self.moved_bytes:,.0f}",
            f"{moved:,}",
            f"{moved / self.moved_bytes:.4f}",
            f"{moved / formula:.4f}",
        )


def local_elems(leaf: Any, num_devices: int, is_split: bool) -> int:
    """Elements on one device; what does not divide, or is small, stays whole."""
    divides = any(length % num_devices == 0 for length in leaf.shape)
    if is_split and divides and leaf.size >= _THRESHOLD:
        return leaf.size // num_devices
    return leaf.size


def moved_by_hand(params: Any, stage: int, num_devices: int) -> float:
    """Bytes that one device sends, in bfloat16.

    At stage 3 the blocks are gathered twice, forward and backward. The embedding is
    looked up, which needs no weight backward, and backward begins with the head while
    it is still there: these two are gathered once.
    """
    units = 0.0
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path)
        is_block = "lock" in name or "layers" in name
        is_whole = local_elems(leaf, num_devices, True) == leaf.size
        num_gathers = 2 if stage == 3 and is_block and not is_whole else 1
        units += leaf.size * (num_gathers + 1)
    return units * 2 * (num_devices - 1) / num_devices


def count_row(num_devices: int, is_scanned: bool, stage: int) -> Row:
    """Compiles one step and counts it by hand.

    Args:
        num_devices: A key of `PODS`. The model is as wide, so that every matrix
            divides.
        is_scanned: Stack and scan the two blocks.
        stage: The ZeRO stage. A finding raises.
    """
    gpt = build_gpt(
        vocab=1024, width=max(256, num_devices), num_layers=2, is_scanned=is_scanned
    )
    state, batch = gpt.state_shapes(), batch_shapes(2 * num_devices, NUM_TOKENS)
    step = jzero.shard_train_step(
        gpt.step,
        stage=stage,
        mesh=pod_mesh(PODS[num_devices]),
        config=jzero.ZeroConfig(on_finding="raise"),
    )
    held = sum(
        4 * local_elems(leaf, num_devices, stage > 0)
        for leaf in jax.tree.leaves(state.params)
    )
    return Row(
        num_devices=num_devices,
        is_scanned=is_scanned,
        stage=stage,
        # Parameters and two moments in float32, and two arrays of token numbers.
        resident_bytes=3 * held + 2 * (2 * NUM_TOKENS * 4),
        moved_bytes=moved_by_hand(state.params, stage, num_devices),
        report=step.compile(state, batch).report(),
    )


def render(rows: Sequence[Sequence[str]]) -> str:
    """Writes this part of the document out of the cells of rows."""
    return markdown_table(HEADER, rows)


def _path(num_devices: int, is_scanned: bool, stage: int) -> Path:
    blocks = "scanned" if is_scanned else "unrolled"
    return FOLDER / f"{num_devices}-{blocks}-{stage}.json"


def main(arguments: Sequence[str] | None = None) -> None:
    """Counts, prints, and writes the document if nothing was left out."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.formula",
        description=(__doc__ or "").split("\n")[0],
    )
    parser.add_argument("--devices", action="append", type=int, choices=list(PODS))
    parser.add_argument("--stage", action="append", type=int, choices=STAGES)
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
    table, rows = Table(*HEADER), list[list[str]]()
    for num_devices in args.devices or PODS:
        for is_scanned in (False, True):
            for stage in args.stage or STAGES:
                path = _path(num_devices, is_scanned, stage)
                if args.made and not path.exists():
                    continue
                if not ((args.made or args.reuse) and path.exists()):
                    row = count_row(num_devices, is_scanned, stage)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(json.dumps(row.cells))
                rows.append(json.loads(path.read_text()))
                table.add_row(*rows[-1])
                print(*rows[-1], sep="  ", file=sys.stderr, flush=True)
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    if not (args.devices or args.stage):
        num_rows = 2 * len(PODS) * len(STAGES)
        text = render(rows)
        if len(rows) < num_rows:
            text += f"\n\n{len(rows)} of {num_rows} rows: this run was interrupted."
        write_part(DOCUMENT, PART, text)
        print(f"wrote {DOCUMENT.name}")


if __name__ == "__main__":
    main()
