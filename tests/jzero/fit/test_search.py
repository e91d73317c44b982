"""What fits is found in few compiles, and what does not is said."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import numpy as np
from jax.sharding import Mesh

from jzero import Offload
from jzero.config import ZeroConfig
from jzero.fit.job import load_job, load_variants, try_job
from jzero.fit.result import Fit
from jzero.fit.search import fit_job
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


# Windows larger than these small models leave nothing to predict from.
NO_WINDOWS = ZeroConfig(reduce_window_bytes=0, reuse_window_bytes=0, prefetch_bytes=0)


def test_stages_that_cannot_fit_are_not_compiled() -> None:
    config = replace(NO_WINDOWS, persistence_threshold=0)
    limit = int(small().num_state_bytes * 0.9)
    fit = fit_job(
        small(),
        default_mesh("data"),
        hbm_bytes=limit,
        headroom=0,
        max_compiles=3,
        config=config,
    )
    assert fit.skipped[-1].stage == 0 and not fit.skipped[-1].is_predicted
    assert all(trial.stage > 0 for trial in fit.trials)
    # What was given is not searched, and is in the line of Python.
    assert {trial.config for trial in fit.trials} == {config}
    assert "jzero.ZeroConfig(persistence_threshold=0, " in fit.python


def test_nothing_fits() -> None:
    fit = fit_job(small(), default_mesh("data"), hbm_bytes=900_000, config=NO_WINDOWS)
    assert fit.chosen is None and fit.python == ""
    nearest = min(trial.peak_bytes for trial in fit.trials)
    assert fit.missing_bytes == nearest - fit.limit_bytes > 0
    # Only the stage that holds least was compiled: it tells of the others, which
    # hold more. No whole leaves, the smallest batch and host memory were tried too.
    tried = [(t.stage, t.config.persistence_threshold, t.num_rows) for t in fit.trials]
    assert tried[:3] == [(3, 2**14, 2), (3, 0, 2), (3, 0, 1)]
    offloads = [trial.config.offload for trial in fit.trials]
    assert offloads[:3] == [None] * 3
    assert offloads[3:] == [
        Offload(optimizer="host"),
        Offload(optimizer="host", params="host"),
    ]
    assert [s.stage for s in fit.skipped] == [2, 1, 0]
    assert fit.advice


def test_remat_is_tried_where_nothing_fits_without() -> None:
    settings = {**SETTINGS, "length": 256, "layers": 8}
    remat, plain = load_variants("benchmarks.llama:build", settings)
    mesh = default_mesh("data")
    enough = try_job(remat, mesh, stage=3, config=NO_WINDOWS).peak_bytes
    fit = fit_job(
        plain,
        mesh,
        hbm_bytes=enough,
        headroom=0,
        max_compiles=2,
        config=NO_WINDOWS,
        variants=(remat,),
    )
    assert fit.trials[0].remat is False and not fit.fits(fit.trials[0])
    assert fit.chosen is not None and fit.chosen.remat is True


def test_nothing_can_fit() -> None:
    fit = fit_job(small(), default_mesh("data"), hbm_bytes=100)
    assert fit.trials == () and len(fit.skipped) == 4
    assert fit.missing_bytes > 0 and "more of them" in fit.advice


def test_state_goes_to_host_memory_if_nothing_else_fits() -> None:
    # One device, on which no stage saves anything; more state than the rest needs.
    job = load_job("benchmarks.llama:build", {**SETTINGS, "rows": 1, "length": 8})
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    offload = Offload(optimizer="host", params="host")
    both = try_job(job, mesh, stage=3, config=ZeroConfig(offload=offload))
    fit = fit_job(job, mesh, hbm_bytes=int(both.peak_bytes * 1.02), headroom=0)
    assert fit.chosen is not None
    assert fit.chosen.config.offload == offload
    assert fit.chosen.host_bytes > 0
    wanted = "offload=jzero.Offload(optimizer='host', params='host')"
    assert wanted in fit.python
    assert len(fit.trials) <= 8
