"""The choice as a line of Python, and what is said where there is none."""

from __future__ import annotations

import pytest

from jzero.fit.job import Trial
from jzero.fit.result import Fit, Skipped, write_python
from tests.jzero.fit.trials import trial_of

GB = 10**9


def fit_of(*trials: Trial, chosen: Trial | None = None, skipped: int = 0) -> Fit:
    return Fit(
        trials=trials,
        skipped=(Skipped(stage=0, least_bytes=skipped),) if skipped else (),
        chosen=chosen,
        hbm_bytes=20 * GB,
        limit_bytes=16 * GB,
    )


def test_the_line_of_python() -> None:
    assert write_python(trial_of(2, GB)) == ("jzero.shard_train_step(step_fn, stage=2)")
    trial = trial_of(3, GB, remat=False, persistence_threshold=0, prefetch_bytes=8)
    assert write_python(trial) == (
        "jzero.shard_train_step(step_fn, stage=3, config=jzero.ZeroConfig("
        "persistence_threshold=0, prefetch_bytes=8))  # step_fn from build(remat=False)"
    )
    assert fit_of(trial, chosen=trial).python == write_python(trial)


def test_what_fits_misses_nothing() -> None:
    trial = trial_of(2, 16 * GB)
    fit = fit_of(trial, chosen=trial)
    assert fit.fits(trial) and not fit.fits(trial_of(2, 16 * GB + 1))
    assert fit.missing_bytes == 0 and fit.advice == ""


@pytest.mark.parametrize(
    ("trials", "missing", "advice"),
    [
        (
            [trial_of(2, 30 * GB), trial_of(3, 18 * GB, argument_bytes=10 * GB)],
            2 * GB,
            "1.3 times as many devices, or devices with 18 GB",
        ),
        (
            [trial_of(3, 20 * GB, argument_bytes=2 * GB)],
            4 * GB,
            "temporaries alone take 18.0 GB: rematerialize (jax.checkpoint, nn.remat), "
            "shorten the sequence, or take devices with 20 GB",
        ),
        (
            [trial_of(3, 20 * GB, argument_bytes=2 * GB, remat=True)],
            4 * GB,
            "temporaries alone take 18.0 GB: shorten the sequence, or take devices "
            "with 20 GB",
        ),
    ],
)
def test_what_would_fit(trials: list[Trial], missing: int, advice: str) -> None:
    fit = fit_of(*trials, skipped=40 * GB)
    assert fit.python == ""
    assert (fit.missing_bytes, fit.advice) == (missing, advice)


def test_nothing_was_worth_compiling() -> None:
    fit = fit_of(skipped=40 * GB)
    assert fit.missing_bytes == 24 * GB
    assert fit.advice == "devices with more than 40 GB, or more of them"
