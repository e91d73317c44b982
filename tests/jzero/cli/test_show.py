"""The tables of the command line hold the numbers of the trials."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import Console

from jzero.cli.show import compare_table, fit_table
from jzero.config import ZeroConfig
from jzero.fit.job import load_job, try_job
from jzero.fit.result import Fit, Skipped
from jzero.runtime.mesh import default_mesh

SETTINGS = {"width": 128, "inner": 256, "heads": 2, "layers": 2, "vocab": 512}


def text_of(table: Any) -> str:
    console = Console(width=160, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_rows_of_trials() -> None:
    job = load_job("benchmarks.llama:build", {**SETTINGS, "length": 64})
    trial = try_job(job, default_mesh("data"), stage=3)
    compared = text_of(compare_table([("here", trial)], hbm_bytes={"here": 1}))
    assert "here" in compared and "NO" in compared
    fits = text_of(compare_table([("here", trial)], hbm_bytes={"here": 10**12}))
    assert "yes" in fits
    fit = Fit(
        trials=(trial,),
        skipped=(
            Skipped(stage=0, least_bytes=81_000_000_000),
            Skipped(stage=1, least_bytes=75_000_000_000, is_predicted=True),
        ),
        chosen=trial,
        hbm_bytes=80_000_000_000,
        limit_bytes=73_600_000_000,
    )
    shown = text_of(fit_table(fit))
    assert "3 <-" in shown and "> 81 GB" in shown and "73.6 GB of 80 GB" in shown
    assert "~ 75 GB (not compiled)" in shown
    assert not {"windows", "remat", "whole leaves"} & set(shown.split())
    config = ZeroConfig(persistence_threshold=100)
    other = replace(trial, remat=True, config=config)
    shown = text_of(fit_table(replace(fit, trials=(trial, other))))
    assert "remat" in shown and "< 100" in shown and "windows" not in shown
