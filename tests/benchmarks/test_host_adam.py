"""The update that is timed, and a contender that is told to run it."""

from __future__ import annotations

import jax
import numpy as np

from benchmarks.host_adam import KERNEL, OFFLOADS, measure, update_step


def test_both_ways_of_the_update_agree() -> None:
    results = []
    for offload in OFFLOADS.values():
        step, (params, opt_state, grads) = update_step(offload, 1000)
        params, opt_state = step(params, opt_state, grads)
        results.append(jax.tree.leaves((params, opt_state)))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_contender_answers_with_its_rate() -> None:
    rates = measure([KERNEL], 1000, num_threads=1, num_rounds=2)
    assert list(rates) == [KERNEL]
    assert rates[KERNEL] > 0
