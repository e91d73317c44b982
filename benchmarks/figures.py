"""The figures table: programs compiled for H100s, with no GPU present.

    python -m benchmarks.figures                          # all cases, all stages
    python -m benchmarks.figures --case unroll12 --stage 3 --details
    python -m benchmarks.figures --case scan --annotations  # jit's shardings alone
    python -m benchmarks.figures --pod h100:1x8 --layers 2 --width 512 --stage 2
    python -m benchmarks.figures --case n8 --set reduce_window_bytes=8MiB
    python -m benchmarks.figures --case scan --text out.hlo # the compiled program

Prints per device: resident bytes beside the formula, the device peak (argument +
output - alias + temp), bytes moved in units of one bf16 all-reduce of all gradients,
seconds of lowering and compiling, and whether the case reaches what it must. Nothing
runs: memory and collectives are the compiler's. Needs the wheels that `python -m
jzero.audit.setup_aot` installs.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

import jzero
from benchmarks.cases import CASES, MAX_LAYER_GROWTH_MB, Case, Limits
from benchmarks.compiled import Figures, compile_case, layer_growth_mb, misses
from jzero.audit.facts import total_collectives
from jzero.audit.numbers import format_size

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table. Returns 1 if a case misses what it must reach, else 0."""
    args = _parser().parse_args(argv)
    # Keeps JAX off GPUs, present or not. It looks at the first use of a device.
    jax.config.update("jax_platforms", "cpu")
    config = jzero.ZeroConfig(**dict(_setting(text) for text in args.set))
    console = Console(width=None if sys.stdout.isatty() else 110)
    table = Table(title="annotations alone" if args.annotations else None)
    for heading in ("case", "stage"):
        table.add_column(heading)
    for heading in ("resident MB", "formula", "peak MB", "moved", "lower s", "compile"):
        table.add_column(heading, justify="right")
    table.add_column("misses")
    has_missed = False
    peaks_mb: dict[tuple[str, int], float] = {}
    for name, case in _cases(args).items():
        limits = dict(case.stages)
        for stage in args.stage or limits or (0, 1, 2, 3):
            figures = compile_case(
                case,
                stage,
                config=config,
                way="arguments" if args.annotations else "jzero",
            )
            missed = misses(
                figures,
                stage,
                limits.get(stage, Limits()),
                config.persistence_threshold,
            )
            has_missed = has_missed or bool(missed)
            memory = figures.memory
            peaks_mb[name, stage] = memory.device_peak_bytes / 1e6
            row = (
                name,
                str(stage),
                f"{memory.argument_bytes / 1e6:.1f}",
                f"{figures.formula_bytes / 1e6:.1f}",
                f"{memory.device_peak_bytes / 1e6:.1f}",
                f"{figures.units:.3f}",
                f"{figures.lower_seconds:.1f}",
                f"{figures.compile_seconds:.1f}",
                ", ".join(missed),
            )
            table.add_row(*row)
            print(*row, sep="  ", file=sys.stderr, flush=True)
            if args.details:
                console.print(_totals(figures))
                for fact in sorted(
                    figures.collectives, key=lambda f: -f.step_moved_bytes
                )[: args.details]:
                    console.print(_line(fact), markup=False, soft_wrap=True)
            if args.text:
                with open(args.text, "w") as file:
                    file.write(figures.compiled.as_text())
    console.print(table)
    growth_mb = layer_growth_mb(peaks_mb)
    if growth_mb is not None:
        has_missed = has_missed or growth_mb > MAX_LAYER_GROWTH_MB
        console.print(
            f"each added layer adds {growth_mb:.1f} MB to the peak at stage 3; it may "
            f"add {MAX_LAYER_GROWTH_MB:g}"
        )
    return int(has_missed and not args.annotations)


def _totals(figures: Figures) -> Table:
    table = Table()
    for heading in ("collective", "dtype", "places", "runs", "bytes in", "bytes moved"):
        table.add_column(heading, justify="right" if table.columns[1:] else "left")
    for total in total_collectives(figures.collectives):
        table.add_row(
            total.kind,
            total.dtype,
            str(total.num_sites),
            str(total.num_runs),
            format_size(total.operand_bytes),
            format_size(total.moved_bytes),
        )
    return table


def _line(fact: Any) -> str:
    parts = ", ".join(map(str, fact.parts[:4])) + (", ..." * (len(fact.parts) > 4))
    return (
        f"{fact.step_moved_bytes / 1e6:9.2f} MB  {fact.runs:4d} x {fact.kind} of "
        f"{parts}  {fact.source or ''}  {fact.op_name[-70:]}  {fact.name}"
    )


def _cases(args: argparse.Namespace) -> dict[str, Case]:
    own = {
        "pod": args.pod,
        "num_layers": args.layers,
        "width": args.width,
        "is_scanned": args.scan,
        "sequences_per_device": args.sequences,
        "num_tokens": args.tokens,
        "num_micro_batches": args.micro_batches,
    }
    own = {key: value for key, value in own.items() if value is not None}
    if not own:
        names = args.case or list(CASES)
        return {name: CASES[name] for name in names}
    base = (
        CASES[args.case[0]]
        if args.case
        else Case(pod="h100:1x8", num_layers=4, width=1024)
    )
    # Another model or pod than the case's: what the case must reach does not apply.
    stages = tuple((stage, Limits()) for stage, _ in base.stages)
    return {"own": dataclasses.replace(base, stages=stages, **own)}


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.figures", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add("--case", action="append", choices=list(CASES), help="default: every case")
    add("--stage", action="append", type=int, choices=range(4))
    add("--annotations", action="store_true", help="jax.jit with shardings alone")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="ZeroConfig")
    add(
        "--details",
        nargs="?",
        type=int,
        const=20,
        default=0,
        metavar="N",
        help="also print the totals and the N collectives that move most",
    )
    add("--text", metavar="FILE", help="write the last compiled program's text")
    add("--pod", help='e.g. "h100:8x8"; this and the next make a case of your own')
    add("--layers", type=int)
    add("--width", type=int)
    add("--scan", action=argparse.BooleanOptionalAction)
    add("--sequences", type=int, help="per device")
    add("--tokens", type=int, help="of each sequence")
    add("--micro-batches", type=int)
    return parser


if __name__ == "__main__":
    sys.exit(main())
