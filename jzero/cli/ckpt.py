"""The command line of checkpoints: `jzero ckpt ls|consolidate|diff|verify`.

Lives here: the commands and their options. Each has a twin in `jzero.checkpoint`,
which is imported when a command runs: it needs libraries that plans do without. May
import: everything. Read next: `show_ckpt.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from jzero.cli.show import print_error
from jzero.cli.show_ckpt import (
    checked_table,
    consolidated_text,
    diff_table,
    leaves_table,
    steps_table,
)
from jzero.errors import CheckpointError, JzeroError

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    help="Checkpoints: list them, turn them into safetensors, compare and check them. "
    "No accelerator and no model code is needed.",
)

SOURCE_HELP = (
    "runs/a for its newest complete step, runs/a@100 for one step, or the folder of a "
    "step; also of steps that Orbax wrote without jzero."
)
Source = Annotated[str, typer.Argument(help=SOURCE_HELP)]


@app.command("ls")
def list_steps(
    directory: Annotated[str, typer.Argument(help="runs/a, or runs/a@100.")],
    leaves: Annotated[
        bool, typer.Option("--leaves", help="Also the leaves of each step.")
    ] = False,
) -> None:
    """Lists steps: complete or not, bytes, stage, devices, versions."""
    steps = _library().list_checkpoints(directory)
    console = Console()
    console.print(steps_table(directory, steps))
    for step in steps if leaves else ():
        if step.manifest is not None:
            console.print(leaves_table(step.manifest))


@app.command()
def consolidate(
    source: Source,
    out: Annotated[str, typer.Argument(help="The folder to write.")],
    what: Annotated[
        str,
        typer.Option(help="params, optimizer, other, several with commas, or all."),
    ] = "params",
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="'params/decoder/*'; may be repeated."),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="same, float32, bfloat16 or float16.")
    ] = "same",
    separator: Annotated[str, typer.Option(help="/ or . between keys.")] = "/",
    max_shard: Annotated[str, typer.Option(help="The most bytes of a file.")] = "5GB",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier result.")
    ] = False,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Do not compare checksums first.")
    ] = False,
) -> None:
    """Writes a step as safetensors files with an index."""
    library = _library()
    with _progress() as progress:
        done = library.consolidate(
            source,
            out,
            what=what,
            only=only or (),
            dtype=dtype,
            separator=separator,
            max_shard_bytes=max_shard,
            overwrite=overwrite,
            check=not no_check,
            progress=progress,
        )
    Console(highlight=False, soft_wrap=True).print(consolidated_text(done))


@app.command("diff")
def compare(
    first: Source,
    second: Source,
    atol: Annotated[
        float, typer.Option(min=0, help="Numbers that differ by no more are equal.")
    ] = 0.0,
) -> None:
    """Compares two steps leaf by leaf.

    Exit codes are those of diff: 0 if they are the same, 1 if not, 2 for trouble.
    """
    with _trouble(), _progress() as progress:
        found = _library().diff(first, second, atol=atol, progress=progress)
    console = Console(soft_wrap=True)
    if found.is_same:
        console.print(f"{found.num_leaves} leaves, no difference")
        return
    console.print(diff_table(found))
    raise typer.Exit(1)


@app.command()
def verify(
    source: Annotated[str, typer.Argument(help="runs/a for all steps, or runs/a@100.")],
) -> None:
    """Compares every byte with the checksums that were taken when it was written.

    The exit code is 0 if all is well, 1 if a step is damaged, and 2 if it could not
    be told: there is no such step, or it has no checksums.
    """
    with _trouble(), _progress() as progress:
        steps = _library().verify(source, progress=progress)
    Console().print(checked_table(source, steps))
    if any(step.problems for step in steps):
        raise typer.Exit(1)
    if not any(step.is_whole for step in steps):
        raise typer.Exit(2)


def _library() -> Any:
    """Imports what commands need, or says how to install it."""
    try:
        return importlib.import_module("jzero.checkpoint")
    except ModuleNotFoundError as error:
        raise CheckpointError(
            f"checkpoints need {error.name}, which is not installed.\n"
            "Remedy: pip install 'jzero[checkpoint]'"
        ) from None


@contextmanager
def _trouble() -> Iterator[None]:
    """Gives errors the exit code that tells them from an answer."""
    try:
        yield
    except JzeroError as error:
        print_error(error)
        raise typer.Exit(2) from None


@contextmanager
def _progress() -> Iterator[Any]:
    """Shows a bar of bytes, where there is a terminal to show it on."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    is_shown = console.is_terminal
    with Progress(
        *columns, console=console, transient=True, disable=not is_shown
    ) as progress:
        task = progress.add_task("opening", total=None)

        def show(done_bytes: int, total_bytes: int, text: str) -> None:
            progress.update(
                task, completed=done_bytes, total=total_bytes, description=text
            )

        yield show
