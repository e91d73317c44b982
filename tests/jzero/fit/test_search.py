"""What fits is found in few compiles, and what does not is said."""

from __future__ import annotations

import functools
import re

import pytest

from jzero.config import ZeroConfig
from jzero.fit.job import Job, load_variants
from jzero.fit.result import Fit
from jzero.fit.search import THRESHOLDS, fit_job
from jzero.runtime.mesh import default_mesh
from tests.jzero.fit.trials import SETTINGS, small, small_variants


@functools.cache
def roomy() -> tuple[Fit, tuple[str, ...]]:
    """With room for all stages, and for several rows."""
    said: list[str] = []
    job, *variants = small_variants()
    fit = fit_job(
        job,
        default_mesh("data"),
        hbm_bytes=16_000_000,
        variants=variants,
        progress=said.append,
    )
    return fit, tuple(said)


def test_the_largest_batch_that_fits_in_few_compiles() -> None:
    fit, said = roomy()
    assert fit.chosen is not None and len(fit.trials) <= 8
    assert fit.chosen.peak_bytes <= fit.limit_bytes == int(16_000_000 * 0.92)
    assert fit.chosen.num_rows > small().num_rows
    # One more step along the line would not fit.
    same = sorted(
        (
            t
            for t in fit.trials
            if (t.stage, t.remat) == (fit.chosen.stage, fit.chosen.remat)
        ),
        key=lambda t: t.num_rows,
    )
    slope = (same[-1].peak_bytes - same[0].peak_bytes) / (
        same[-1].num_rows - same[0].num_rows
    )
    assert fit.chosen.peak_bytes + 2 * slope > fit.limit_bytes
    assert fit.python.startswith("jzero.shard_train_step(step_fn, stage=")
    assert fit.python.endswith(f"build(remat={fit.chosen.remat})")
    assert fit.missing_bytes == 0 and fit.advice == ""
    assert len([text for text in said if text.startswith("compiling")]) == len(
        fit.trials
    )


def test_both_settings_of_remat_are_tried_at_the_best_stage() -> None:
    fit, _ = roomy()
    assert fit.chosen is not None
    tried = {(t.stage, t.remat) for t in fit.trials}
    assert {(fit.chosen.stage, remat) for remat in (True, False)} <= tried
    # And nowhere else: the stages are surveyed as the job is by default.
    assert {stage for stage, remat in tried if not remat} == {fit.chosen.stage}


def test_stages_that_cannot_fit_are_not_compiled() -> None:
    limit = int(small().num_state_bytes * 0.9)
    fit = fit_job(
        small(), default_mesh("data"), hbm_bytes=limit, headroom=0, max_compiles=4
    )
    assert [skipped.stage for skipped in fit.skipped][-1] == 0
    assert not fit.skipped[-1].is_predicted
    assert all(trial.stage > 0 for trial in fit.trials)


def test_nothing_fits() -> None:
    fit = fit_job(small(), default_mesh("data"), hbm_bytes=900_000, max_compiles=5)
    assert fit.chosen is None and fit.python == ""
    nearest = min(trial.peak_bytes for trial in fit.trials)
    assert fit.missing_bytes == nearest - fit.limit_bytes > 0
    # Only the stage that holds least was compiled; it tells of the others.
    assert {trial.stage for trial in fit.trials} == {3}
    # The smallest windows, no whole leaves and the smallest batch were tried too.
    last = fit.trials[-1].config
    assert (last.prefetch_bytes, last.persistence_threshold) == (0, 0)
    assert {trial.num_rows for trial in fit.trials} == {1, 2}
    assert fit.advice


def test_remat_is_tried_where_nothing_fits_without() -> None:
    settings = {**SETTINGS, "length": 256, "layers": 8}
    remat, plain = load_variants("benchmarks.llama:build", settings)
    fit = fit_job(
        plain,
        default_mesh("data"),
        hbm_bytes=12_000_000,
        headroom=0,
        max_compiles=4,
        variants=(remat,),
    )
    assert fit.trials[0].remat is False and not fit.fits(fit.trials[0])
    assert fit.chosen is not None and fit.chosen.remat is True


def test_nothing_can_fit() -> None:
    fit = fit_job(small(), default_mesh("data"), hbm_bytes=100)
    assert fit.trials == () and len(fit.skipped) == 4
    assert fit.missing_bytes > 0 and "more of them" in fit.advice


def only_last_stage(config: ZeroConfig | None = None) -> Fit:
    """With as much memory as leaves no stage but the last."""
    job: Job = small()
    return fit_job(
        job,
        default_mesh("data"),
        hbm_bytes=10**7,
        headroom=0,
        max_compiles=4,
        config=config,
    )


def test_whole_leaves_that_save_bytes_are_tried() -> None:
    assert set(THRESHOLDS) > {0}
    fit = only_last_stage()
    thresholds = [trial.config.persistence_threshold for trial in fit.trials]
    assert thresholds[-1] in THRESHOLDS


@pytest.mark.parametrize("threshold", [0])
def test_settings_that_were_given_are_in_the_line_of_python(threshold: int) -> None:
    config = ZeroConfig(persistence_threshold=threshold)
    fit = fit_job(
        small(), default_mesh("data"), hbm_bytes=10**9, max_compiles=4, config=config
    )
    assert "jzero.ZeroConfig(persistence_threshold=0)" in fit.python
    # What was given is not searched.
    assert {trial.config for trial in fit.trials} == {config}
    assert re.search(r"stage=[012]", fit.python)
