"""What fits is found in few compiles, and what does not is said."""

from __future__ import annotations

import functools

import jax
import pytest

from jzero.config import ZeroConfig
from jzero.fit.job import Job, load_job, plan_job
from jzero.fit.search import fit_job, least_bytes
from jzero.runtime.mesh import default_mesh

SETTINGS = {"width": 128, "inner": 256, "heads": 2, "layers": 2, "vocab": 512}


@functools.cache
def small() -> Job:
    return load_job("benchmarks.llama:build", {**SETTINGS, "length": 64, "rows": 2})


def test_the_least_that_a_stage_holds() -> None:
    mesh, job = default_mesh("data"), small()
    least = [
        least_bytes(plan_job(job, mesh, stage=stage, config=ZeroConfig()))
        for stage in range(4)
    ]
    assert least[0] == job.num_state_bytes
    assert least[1] == least[2] > least[3]
    params = sum(leaf.size for leaf in jax.tree.leaves(job.state[0].params))
    assert least[1] - least[3] == 2 * params


def test_the_largest_batch_that_fits_in_few_compiles() -> None:
    said: list[str] = []
    fit = fit_job(
        small(), default_mesh("data"), hbm_bytes=16_000_000, progress=said.append
    )
    assert fit.chosen is not None and len(fit.trials) <= 8
    assert fit.chosen.peak_bytes <= fit.limit_bytes == int(16_000_000 * 0.92)
    assert fit.chosen.num_rows > small().num_rows
    # One more step along the line would not fit.
    same = [t for t in fit.trials if t.stage == fit.chosen.stage]
    slope = (same[-1].peak_bytes - same[0].peak_bytes) / (
        same[-1].num_rows - same[0].num_rows
    )
    assert fit.chosen.peak_bytes + 2 * slope > fit.limit_bytes
    assert fit.python.startswith("jzero.shard_train_step(step_fn, stage=")
    assert fit.missing_bytes == 0 and fit.advice == ""
    assert len([text for text in said if text.startswith("compiling")]) == len(
        fit.trials
    )


def test_stages_that_cannot_fit_are_not_compiled() -> None:
    limit = int(small().num_state_bytes * 0.9)
    fit = fit_job(small(), default_mesh("data"), hbm_bytes=limit, headroom=0)
    assert [skipped.stage for skipped in fit.skipped] == [0]
    assert all(trial.stage > 0 for trial in fit.trials)


def test_nothing_fits() -> None:
    fit = fit_job(small(), default_mesh("data"), hbm_bytes=900_000, max_compiles=5)
    assert fit.chosen is None and fit.python == ""
    nearest = min(trial.peak_bytes for trial in fit.trials)
    assert fit.missing_bytes == nearest - fit.limit_bytes > 0
    # The smallest windows and the smallest batch were tried too.
    assert fit.trials[-1].config.prefetch_bytes == 0
    assert {trial.num_rows for trial in fit.trials} == {1, 2}
    assert fit.advice


def test_nothing_can_fit() -> None:
    fit = fit_job(small(), default_mesh("data"), hbm_bytes=100)
    assert fit.trials == () and len(fit.skipped) == 4
    assert fit.missing_bytes > 0 and "more of them" in fit.advice


def test_settings_that_were_given_are_in_the_line_of_python() -> None:
    config = ZeroConfig(persistence_threshold=0)
    fit = fit_job(
        small(), default_mesh("data"), hbm_bytes=10**9, max_compiles=4, config=config
    )
    assert "jzero.ZeroConfig(persistence_threshold=0)" in fit.python
    with pytest.raises(AttributeError):
        fit.limit_bytes = 3  # type: ignore[misc]
