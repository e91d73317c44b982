"""The tables: in the terminal, and in `docs/benchmarks.md` between two markers."""

from __future__ import annotations

import datetime
import platform
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table

from benchmarks.peers.cases import Size
from benchmarks.peers.results import Result

BEGIN = "<!-- peers:begin -->"
END = "<!-- peers:end -->"
HEADER = (
    "case",
    "s/step",
    "slowest round",
    "cost of sharding",
    "CPU s/step",
    "its cost",
    "state MB",
    "peak RSS MB",
)


def cpu_name() -> str:
    """Returns the processor's model as the kernel names it."""
    found = re.search(r"^model name\s*:\s*(.+)$", _cpu_info(), re.M)
    return found[1] if found else platform.machine()


def _cpu_info() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def sharding_cost(
    result: Result, results: Sequence[Result], seconds: Callable[[Result], float]
) -> float | None:
    """Returns seconds over those of the same framework's plain data parallelism.

    None if that was not run.
    """
    plain = [r for r in results if r.case == result.case.baseline]
    return seconds(result) / seconds(plain[0]) if plain else None


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def row(result: Result, results: Sequence[Result]) -> tuple[str, ...]:
    """Returns the cells of one case, in the order of `HEADER`."""
    cost = sharding_cost(result, results, lambda r: r.step_seconds)
    cpu_cost = sharding_cost(result, results, lambda r: r.cpu_seconds)
    return (
        result.case.label,
        f"{result.step_seconds:.2f}",
        f"{result.slowest_seconds:.2f}",
        _ratio(cost),
        f"{result.cpu_seconds:.2f}",
        _ratio(cpu_cost),
        f"{result.state_bytes / 1e6:.0f}",
        f"{result.peak_bytes / 1e6:.0f}",
    )


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _of(dtype: str, results: Sequence[Result]) -> list[Result]:
    chosen = [r for r in results if r.case.dtype == dtype]
    return sorted(chosen, key=lambda r: (r.case.framework, r.case.stage))


def dtypes(results: Sequence[Result]) -> list[str]:
    """Returns the dtypes that were run, in their order."""
    return list(dict.fromkeys(r.case.dtype for r in results))


def conditions(results: Sequence[Result], size: Size, today: datetime.date) -> str:
    """Returns what the numbers were measured on, as a sentence or three."""
    versions: dict[str, str] = {}
    for result in results:
        versions |= result.versions
    listed = ", ".join(f"{name} {value}" for name, value in sorted(versions.items()))
    return (
        f"{today.isoformat()}, {cpu_name()}, 2 processes of one thread, each tied to "
        f"a core of its own, gloo over loopback. {listed}. GPT of {size.num_layers} "
        f"layers, width {size.width}, vocabulary {size.vocab}, {size.rows} sequences "
        f"of {size.num_tokens} tokens per process. "
        f"{len(results[0].rounds)} interleaved rounds, each with "
        f"{len(results[0].rounds[0])} timed steps of every case; s/step is the median "
        f"of the fastest round."
    )


def markdown(results: Sequence[Result], size: Size, today: datetime.date) -> str:
    """Returns the generated part of the document, without its markers."""
    parts = [conditions(results, size, today)]
    for dtype in dtypes(results):
        chosen = _of(dtype, results)
        cells = [row(r, results) for r in chosen]
        parts += [f"**{dtype}**", _markdown(HEADER, cells)]
    num_steps = len(results[0].losses)
    header = ["loss at step", *map(str, range(num_steps))]
    for dtype in dtypes(results):
        cells = [
            [r.case.label, *(f"{loss:.4f}" for loss in r.losses)]
            for r in _of(dtype, results)
        ]
        parts += [f"Loss, **{dtype}**", _markdown(header, cells)]
    return "\n\n".join(parts)


def write(path: Path, text: str) -> None:
    """Replaces what lies between the markers of the document of all peers.

    Raises:
      ValueError: the document has no markers, or several.
    """
    write_between(path, BEGIN, END, text)


def write_between(path: Path, begin: str, end: str, text: str) -> None:
    """Replaces what lies between two markers of a document.

    Raises:
      ValueError: the document has no such markers, or several.
    """
    document = path.read_text()
    if document.count(begin) != 1 or document.count(end) != 1:
        raise ValueError(f"{path.name} needs {begin} and {end}, once each")
    before, rest = document.split(begin)
    after = rest.split(end)[1]
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def terminal(results: Sequence[Result]) -> Table:
    """Returns the table that the command prints."""
    table = Table("dtype", *HEADER, "last loss")
    for dtype in dtypes(results):
        for result in _of(dtype, results):
            last = f"{result.losses[-1]:.4f}"
            table.add_row(dtype, *row(result, results), last)
        table.add_section()
    return table
