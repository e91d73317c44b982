"""What a step will need of a device's memory, before it is compiled.

Lives here: `least_bytes`, which a plan alone tells, and `predict_bytes`, which takes
what compiled steps needed beyond that to one that was not compiled. May import: `job`,
plan. Read next: `search.py`, which compiles nothing that cannot fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from jzero.fit.job import Trial
from jzero.plan.plan import Plan

__all__ = ["beyond_bytes", "least_bytes", "predict_bytes"]


def least_bytes(plan: Plan) -> int:
    """Returns what a step must hold on a device, whatever the compiler does.

    The state at rest and, where parameters are whole in a step, one copy of them in
    16 bits.
    """
    whole = plan.placement.gather in ("none", "once") and plan.placement.is_sharded
    elems = sum(x.size_elems for x in plan.state if x.role == "parameter")
    return plan.local_bytes + (2 * elems if whole else 0)


def beyond_bytes(trial: Trial) -> int:
    """Returns what a compiled step needs beyond that: activations and gradients."""
    return max(0, trial.peak_bytes - least_bytes(trial.compiled.plan))


def predict_bytes(
    trials: Sequence[Trial], plan: Plan, *, num_rows: int, remat: bool | None
) -> int | None:
    """Predicts from steps that hold less how much one needs at least, about.

    The activations of a stage are those of any other, and no stage keeps fewer
    gradients than a later one; so beyond what its plan holds it needs what a later
    stage did, but for the windows that only the later one fills.

    Args:
        trials: What was compiled, of the same job.
        plan: Of the step in question.
        num_rows: Rows of its batch on one device.
        remat: Whether it rematerializes, as the job says.

    Returns:
        Bytes, or None if no compiled step tells: none has this batch and this remat
        and a stage that is not earlier.
    """
    found: list[int] = []
    for trial in trials:
        alike = (trial.num_rows, trial.remat) == (num_rows, remat)
        if alike and trial.stage >= plan.stage:
            config = trial.config
            windows_bytes = (
                config.reduce_window_bytes
                + config.reuse_window_bytes
                + config.prefetch_bytes
            )
            found.append(max(0, beyond_bytes(trial) - windows_bytes))
    return least_bytes(plan) + max(found) if found else None
