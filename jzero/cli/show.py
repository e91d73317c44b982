"""Tables of the command line.

Lives here: presentation with rich, no decision. May import: fit and below. Read
next: nothing; `app.py` prints what is built here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from rich import box
from rich.console import Console
from rich.table import Table

from jzero.audit.numbers import format_seconds, format_size
from jzero.errors import JzeroError
from jzero.fit.job import Trial
from jzero.fit.result import Fit, Skipped

__all__ = ["compare_table", "fit_table", "plain_table", "print_error"]


def print_error(error: JzeroError) -> None:
    """Tells a mistake of the user without a traceback.

    Args:
        error: The mistake.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"{type(error).__name__}:", style="bold red")
    console.print(str(error), markup=False)


def plain_table(title: str, headings: Sequence[str]) -> Table:
    """An empty table, the first column to the left and the others to the right.

    Args:
        title: What it shows.
        headings: Its columns.
    """
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index else "left", no_wrap=True)
    return table


def compare_table(
    rows: Iterable[tuple[str, Trial]], *, hbm_bytes: dict[str, int]
) -> Table:
    """One row per pod and stage.

    Args:
        rows: Pod names and trials.
        hbm_bytes: Memory of a device of each pod.
    """
    table = plain_table(
        "one device, as compiled; nothing ran, times are roofline estimates",
        ("pod", "stage", "at rest", "peak", "fits", "sent", "exposed", "estimate",
         "findings"),
    )  # fmt: skip
    for pod, trial in rows:
        report = trial.compiled.report()
        limit = hbm_bytes.get(pod)
        fits = "" if limit is None else "yes" if trial.peak_bytes <= limit else "NO"
        state_bytes = sum(row.compiled_bytes for row in report.resident)
        table.add_row(
            pod,
            str(trial.stage),
            format_size(state_bytes),
            format_size(trial.peak_bytes),
            fits,
            format_size(report.moved_bytes),
            format_size(report.exposed_bytes),
            format_seconds(report.timeline.seconds),
            str(len(report.findings)),
        )
    return table


def fit_table(fit: Fit) -> Table:
    """One row per trial and per stage that was skipped.

    Settings in which no two trials differ have no column.
    """
    settings = {
        name: tell
        for name, tell in _SETTINGS.items()
        if len({tell(trial) for trial in fit.trials}) > 1
    }
    headings = ("stage", "rows", "peak", "fits", "sent", "host", "estimate", "rows/s")
    table = plain_table(
        f"what fits in {format_size(fit.limit_bytes)} of {format_size(fit.hbm_bytes)}; "
        "nothing ran, times are roofline estimates",
        (*headings, *settings),
    )
    for trial in fit.trials:
        report = trial.compiled.report()
        rate = trial.num_rows * report.num_devices / report.timeline.seconds
        table.add_row(
            f"{trial.stage}{' <-' if trial is fit.chosen else ''}",
            str(trial.num_rows),
            format_size(trial.peak_bytes),
            "yes" if fit.fits(trial) else "NO",
            format_size(report.moved_bytes),
            format_size(trial.host_bytes),
            format_seconds(report.timeline.seconds),
            f"{rate:.4g}",
            *(tell(trial) for tell in settings.values()),
        )
    for skipped in fit.skipped:
        table.add_row(str(skipped.stage), "", _at_least(skipped), "NO")
    return table


def _at_least(skipped: Skipped) -> str:
    size = format_size(skipped.least_bytes)
    return f"~ {size} (not compiled)" if skipped.is_predicted else f"> {size}"


def _windows(trial: Trial) -> str:
    """Bytes of reductions, of reused and of prefetched gathers."""
    config = trial.config
    sizes = (
        config.reduce_window_bytes,
        config.reuse_window_bytes,
        config.prefetch_bytes,
    )
    return "/".join(map(format_size, sizes))


def _remat(trial: Trial) -> str:
    return {True: "yes", False: "no", None: ""}[trial.remat]


def _whole(trial: Trial) -> str:
    """The size below which leaves stay whole."""
    return f"< {trial.config.persistence_threshold}"


_SETTINGS: Mapping[str, Callable[[Trial], str]] = MappingProxyType(
    {"remat": _remat, "whole leaves": _whole, "windows": _windows}
)
