"""The command line: plan for pods that are not there, find what fits, checkpoints.

    jzero plan examples/gpt.py:build --stage 3 --pod h100:8x8 --set layers=24
    jzero plan examples/gpt.py:build --compare --pod h100:8x8,v5p:2x2x2 --out plan.html
    jzero fit examples/gpt.py:build --pod h100:1x8 --hbm 80GB
    jzero aot-setup
    jzero ckpt ls runs/a

Lives here: the commands and their options. May import: everything. Read next:
`jzero/fit/job.py` for what a file must hold.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from jzero.audit.chips import chip_facts
from jzero.audit.pods import parse_pod, pod_mesh
from jzero.audit.report_html import render_html
from jzero.audit.setup_aot import setup
from jzero.checks import parse_bytes
from jzero.cli.ckpt import app as ckpt_app
from jzero.cli.show import compare_table, fit_table, print_error
from jzero.config import ZeroConfig
from jzero.errors import JzeroError
from jzero.fit.job import Trial, load_job, load_variants, try_job
from jzero.fit.search import fit_job
from jzero.offload import Offload

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="ZeRO for JAX: plans and audits of training steps, and checkpoints, on "
    "machines without accelerators.",
)
app.add_typer(ckpt_app, name="ckpt")

Target = Annotated[
    str,
    typer.Argument(
        help="file.py:function or package.module:function. build(**settings) returns "
        "(step_fn, create_state, sample_args, batch), the batch of ONE device.",
    ),
]
Pods = Annotated[
    str, typer.Option("--pod", help="For example h100:8x8; several with commas.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="name=value for build; may be repeated."),
]
Configs = Annotated[
    list[str] | None,
    typer.Option("--config", help="name=value for ZeroConfig; may be repeated."),
]
Offloads = Annotated[
    list[str] | None,
    typer.Option(
        "--offload",
        help="name=value for Offload, as in optimizer=host; may be repeated.",
    ),
]
Rows = Annotated[
    int | None, typer.Option("--rows", min=1, help="Rows of the batch of one device.")
]


@app.command()
def plan(
    target: Target,
    pod: Pods,
    stage: Annotated[int, typer.Option(help="0, 1, 2 or 3.")] = 3,
    compare: Annotated[bool, typer.Option("--compare", help="All stages.")] = False,
    settings: Settings = None,
    config: Configs = None,
    offload: Offloads = None,
    rows: Rows = None,
    hbm: Annotated[
        str | None, typer.Option(help="Memory of a device; that of the chip if absent.")
    ] = None,
    leaves: Annotated[
        bool, typer.Option("--leaves", help="Print the plan too.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Also write this .html or .json file.")
    ] = None,
) -> None:
    """Compiles a step for pods that are not there and reports what it needs."""
    _check_out(out)
    console = Console()
    pods = _pods(pod)
    meshes = {name: pod_mesh(name) for name in pods}
    job = load_job(target, _parse(settings, "--set"))
    chosen = _config(config, offload)
    limits = {name: _hbm_bytes(name, hbm) for name in pods}
    trials: list[tuple[str, Trial]] = []
    stages = (0, 1, 2, 3) if compare else (stage,)
    with _progress(console, len(pods) * len(stages)) as advance:
        for name in pods:
            for number in stages:
                advance(f"compiling stage {number} for {name}")
                trial = try_job(
                    job, meshes[name], stage=number, config=chosen, num_rows=rows
                )
                trials.append((name, trial))
    if leaves:
        console.print(trials[0][1].compiled.plan)
    if len(trials) == 1:
        console.print(trials[0][1].compiled.report())
    console.print(compare_table(trials, hbm_bytes=limits))
    _write(out, trials, max(limits.values()))


@app.command()
def fit(
    target: Target,
    pod: Pods,
    hbm: Annotated[
        str | None, typer.Option(help="Memory of a device; that of the chip if absent.")
    ] = None,
    headroom: Annotated[
        float, typer.Option(min=0, max=0.9, help="Part of it to leave free.")
    ] = 0.08,
    max_compiles: Annotated[int, typer.Option(min=4, help="Compile no more.")] = 8,
    settings: Settings = None,
    config: Configs = None,
    offload: Offloads = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write this .html or .json file.")
    ] = None,
) -> None:
    """Finds the cheapest configuration that fits, and the largest batch."""
    _check_out(out)
    console = Console()
    (name,) = _pods(pod, most=1)
    mesh = pod_mesh(name)
    job, *variants = load_variants(target, _parse(settings, "--set"))
    hbm_bytes = _hbm_bytes(name, hbm)
    with _progress(console, max_compiles + 4) as advance:
        found = fit_job(
            job,
            mesh,
            hbm_bytes=hbm_bytes,
            headroom=headroom,
            max_compiles=max_compiles,
            config=_config(config, offload),
            variants=variants,
            progress=advance,
        )
    console.print(fit_table(found))
    _write(out, [(name, trial) for trial in found.trials], hbm_bytes)
    if found.chosen is None:
        console.print(
            f"Nothing fits: {found.missing_bytes / 1e9:.2f} GB too much. "
            f"What would: {found.advice}."
        )
        raise typer.Exit(1)
    console.print(f"{found.chosen.num_rows} rows on each device:")
    console.print(found.python, style="bold", soft_wrap=True)


@app.command("aot-setup")
def aot_setup(
    tpu: Annotated[bool, typer.Option("--tpu", help="libtpu too.")] = False,
) -> None:
    """Installs what compiling for absent GPUs needs: no CUDA libraries."""
    raise typer.Exit(setup(quiet=True, tpu=tpu))


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; mistakes of the user are told without a traceback.

    Args:
        arguments: What stands behind `jzero`; None takes it from the process.
    """
    # Plans are made of shapes, so an accelerator of this machine is left alone.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        app(arguments)
    except JzeroError as error:
        print_error(error)
        raise SystemExit(1) from None


def _pods(text: str, *, most: int | None = None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or (most is not None and len(names) > most):
        raise typer.BadParameter("one pod" if most == 1 else "at least one pod")
    for name in names:
        parse_pod(name)
    return names


def _hbm_bytes(pod: str, given: str | None) -> int:
    if given is not None:
        return parse_bytes(given, "hbm")
    return chip_facts(parse_pod(pod).chip).memory_bytes


def _parse(pairs: Sequence[str] | None, option: str) -> dict[str, Any]:
    """Reads name=value; values are Python literals, and texts otherwise."""
    parsed: dict[str, Any] = {}
    for pair in pairs or ():
        name, sign, value = pair.partition("=")
        if not sign or not name.isidentifier():
            raise typer.BadParameter(f"{pair!r} is not name=value", param_hint=option)
        try:
            parsed[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            parsed[name] = value
    return parsed


def _config(pairs: Sequence[str] | None, offload: Sequence[str] | None) -> ZeroConfig:
    values = _known(pairs, "--config", ZeroConfig)
    if offload:
        values["offload"] = Offload(**_known(offload, "--offload", Offload))
    return ZeroConfig(**values)


def _known(
    pairs: Sequence[str] | None, option: str, record: type[ZeroConfig | Offload]
) -> dict[str, Any]:
    """Reads name=value for the fields of a record."""
    values = _parse(pairs, option)
    known = list(record.__dataclass_fields__)
    unknown = [name for name in values if name not in known]
    if unknown:
        raise typer.BadParameter(
            f"{', '.join(unknown)}: not among {', '.join(known)}", param_hint=option
        )
    return values


def _check_out(out: Path | None) -> None:
    """Refuses what could not be written before the work is done, not after."""
    if out is None:
        return
    if out.suffix not in (".html", ".json"):
        raise typer.BadParameter(f"{out} ends in neither .html nor .json")
    if not out.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {out.parent}")


def _write(out: Path | None, trials: list[tuple[str, Trial]], hbm_bytes: int) -> None:
    if out is None:
        return
    records = [{"pod": pod, **t.compiled.report().to_dict()} for pod, t in trials]
    if out.suffix == ".json":
        out.write_text(json.dumps(records, indent=1))
    else:
        out.write_text(render_html(records, hbm_bytes=hbm_bytes))
    Console().print(f"wrote {out}")


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Any]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("loading", total=total)

        def advance(text: str) -> None:
            progress.update(task, description=text, advance=1)

        yield advance
