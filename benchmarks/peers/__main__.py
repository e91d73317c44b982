"""jzero beside DeepSpeed ZeRO and torch FSDP2, on the CPUs of one machine.

    python -m benchmarks.peers                       # all, into docs/benchmarks.md
    python -m benchmarks.peers --frameworks jzero    # some, into the terminal only
    python -m benchmarks.peers --peers-python python3.12
    python -m benchmarks.peers --reuse               # the last run, once more

Makes an environment for the rivals below `out/` first. Every case is a fresh pair
of processes; rounds over all cases are interleaved, since machines drift.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.peers import data, environment, table, weights
from benchmarks.peers.cases import DTYPES, STAGES, Size, cases
from benchmarks.peers.processes import ROOT, JobError, run_job
from benchmarks.peers.results import Result, load, merge, save
from benchmarks.peers.worker import Job

DOCUMENT = ROOT / "docs" / "benchmarks.md"
FOLDER = ROOT / "out" / "peers"
RESULTS = FOLDER / "results.json"
NUM_WARM = 2


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--frameworks", nargs="+", choices=STAGES, default=[*STAGES])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=[*DTYPES])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=7, help=f"over {NUM_WARM}")
    parser.add_argument(
        "--peers-python",
        default=sys.executable,
        help="what to make the rivals' environment with",
    )
    parser.add_argument(
        "--reuse",
        action="store_true",
        help="tables of the last run, whole rounds of it",
    )
    args = parser.parse_args(arguments)
    if args.steps <= NUM_WARM:
        parser.error(f"--steps {args.steps}: the first {NUM_WARM} are not timed")
    return args


def prepare(folder: Path, size: Size) -> None:
    """Writes the tokens and the initial weights that every worker loads."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "tokens.npy", data.tokenize(data.source_text(), size.vocab))
    weights.save(folder / "weights.npz", weights.initial(size))


def measure(args: argparse.Namespace, console: Console) -> tuple[list[Result], int]:
    """Runs all rounds; returns what was seen, and how many jobs failed.

    What there is after each whole round is kept in `RESULTS`.
    """
    pythons: dict[str, str | Path] = {"jzero": sys.executable}
    if set(args.frameworks) - {"jzero"}:
        console.print("the rivals' environment ...")
        peers = environment.ensure(ROOT / "out" / "peers-venv", args.peers_python)
        pythons |= {"fsdp2": peers, "deepspeed": peers}
    prepare(FOLDER, Size())
    found: list[Result] = []
    num_failed = 0
    for i in range(args.rounds):
        for case in cases(args.frameworks, args.dtypes):
            job = Job(
                case=case,
                size=Size(),
                rank=0,
                num_processes=2,
                port=0,
                num_steps=args.steps,
                num_warm=NUM_WARM,
                folder=FOLDER,
            )
            try:
                result = run_job(job, pythons[case.framework])
            except JobError as error:
                console.print(str(error), markup=False)
                num_failed += 1
                continue
            found.append(result)
            console.print(
                f"round {i}, {case.dtype}, {case.label}: {result.step_seconds:.2f} s, "
                f"{result.cpu_seconds:.2f} s of CPU"
            )
        save(RESULTS, found)
    return found, num_failed


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)
    console = Console()
    found, num_failed = (load(RESULTS), 0) if args.reuse else measure(args, console)
    if not found:
        return 1
    results = merge(found)
    console.print(table.terminal(results))
    is_all = len(results) == len(cases(STAGES, DTYPES))
    if is_all and not num_failed:
        day = datetime.date.fromtimestamp(RESULTS.stat().st_mtime)
        table.write(DOCUMENT, table.markdown(results, Size(), day))
        console.print(f"wrote {DOCUMENT.relative_to(ROOT)}")
    else:
        console.print("not all cases ran: docs/benchmarks.md is as it was")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
