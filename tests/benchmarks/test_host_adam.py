"""The update that is timed, and a contender that is told to run it."""

from __future__ import annotations

import jax
import numpy as np

from benchmarks.host_adam import BEST, KERNEL, OFFLOADS, measure, row_of, update_step


def test_both_ways_of_the_update_agree() -> None:
    results = []
    for offload in OFFLOADS.values():
        step, (params, opt_state, grads) = update_step(offload, 1000)
        params, opt_state = step(params, opt_state, grads)
        results.append(jax.tree.leaves((params, opt_state)))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_contender_answers_with_its_rates() -> None:
    rates = measure([KERNEL], 1000, num_threads=1, num_rounds=2)
    assert list(rates) == [KERNEL]
    assert len(rates[KERNEL]) == 2
    assert min(rates[KERNEL]) > 0


def test_a_row_has_median_and_fastest_beside_the_rival() -> None:
    rates = {KERNEL: [0.5, 0.8, 0.6], BEST: [0.5, 0.4, 1.0]}
    row = row_of(KERNEL, 2, rates)
    assert row == [KERNEL, "2", "0.60", "1.20", "0.80", "0.80"]
    assert row_of(KERNEL, 1, {KERNEL: [0.5]})[2:] == ["0.50", "-", "0.50", "-"]
