"""What is known of memory before compiling, against plans and against compiles."""

from __future__ import annotations

import jax

from jzero.fit.job import try_job
from jzero.fit.predict import (
    beyond_bytes,
    least_bytes,
    pick_whole,
    predict_bytes,
)
from jzero.runtime.mesh import default_mesh
from tests.jzero.fit.trials import plan_of, small, trial_of

NO_WINDOWS = {"reduce_window_bytes": 0, "reuse_window_bytes": 0, "prefetch_bytes": 0}


def test_the_least_that_a_stage_holds() -> None:
    least = [least_bytes(plan_of(stage)) for stage in range(4)]
    assert least[0] == small().num_state_bytes
    assert least[1] == least[2] > least[3]
    params = sum(leaf.size for leaf in jax.tree.leaves(small().state[0].params))
    assert least[1] - least[3] == 2 * params


def test_what_a_stage_needed_beyond_its_plan_another_needs_too() -> None:
    least = {stage: least_bytes(plan_of(stage)) for stage in range(4)}
    trial = trial_of(3, least[3] + 10**9, **NO_WINDOWS)
    assert beyond_bytes(trial) == 10**9
    for stage in (0, 1, 2, 3):
        predicted = predict_bytes([trial], plan_of(stage), num_rows=2, remat=None)
        assert predicted == least[stage] + 10**9
    windows = trial_of(3, least[3] + 10**9, **{**NO_WINDOWS, "prefetch_bytes": 10**8})
    predicted = predict_bytes([windows], plan_of(2), num_rows=2, remat=None)
    assert predicted == least[2] + 9 * 10**8


def test_steps_that_are_not_alike_tell_nothing() -> None:
    trial = trial_of(2, 10**9, remat=True)
    assert predict_bytes([], plan_of(1), num_rows=2, remat=None) is None
    for stage, num_rows, remat in ((3, 2, True), (1, 4, True), (1, 2, False)):
        assert (
            predict_bytes([trial], plan_of(stage), num_rows=num_rows, remat=remat)
            is None
        )


def test_a_prediction_is_not_above_what_the_compiler_needs() -> None:
    mesh = default_mesh("data")
    last, trial = (try_job(small(), mesh, stage=s, num_rows=16) for s in (3, 2))
    predicted = predict_bytes([last], plan_of(2), num_rows=16, remat=None)
    assert predicted is not None
    assert least_bytes(plan_of(2)) <= predicted <= 1.05 * trial.peak_bytes


def test_leaves_are_kept_whole_where_that_saves_bytes_and_fits() -> None:
    limits = {"limit_bytes": 10**9}
    # All leaves are smaller than the larger ones; whole ones are sent once less.
    plans = [plan_of(3, persistence_threshold=n) for n in (0, 50_000, 100_000)]
    trial = trial_of(3, 10**7)
    picked = pick_whole(trial, plans, **limits)
    assert picked is not None and picked.persistence_threshold == 100_000
    more = least_bytes(plans[1]) - least_bytes(plan_of(3))
    picked = pick_whole(trial, plans, limit_bytes=10**7 + more)
    assert picked is not None and picked.persistence_threshold == 50_000
    assert pick_whole(trial, plans, limit_bytes=10**7 + more - 1) is None
    # Where parameters are gathered once, nothing is saved.
    others = [plan_of(2, persistence_threshold=n) for n in (0, 50_000, 100_000)]
    assert pick_whole(trial_of(2, 10**7), others, **limits) is None
