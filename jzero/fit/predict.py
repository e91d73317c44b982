"""What a step will need of a device's memory, before it is compiled.

Lives here: `least_bytes`, which a plan alone tells, `predict_bytes`, which takes what
compiled steps needed beyond that to one that was not compiled, and `pick_whole`, which
asks plans what larger persistence thresholds would save. May import: `job`, the
formula, plan. Read next: `search.py`, which compiles nothing that cannot fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jzero.audit.formula import plan_traffic
from jzero.config import ZeroConfig
from jzero.fit.job import Trial
from jzero.plan.plan import Plan

__all__ = ["beyond_bytes", "least_bytes", "pick_whole", "predict_bytes"]

# A threshold must save this part of the bytes that a step sends.
_WORTHWHILE = 0.005


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


def pick_whole(
    trial: Trial, plans: Iterable[Plan], *, limit_bytes: int
) -> ZeroConfig | None:
    """Picks the plan that sends least, of those that keep more leaves whole.

    Args:
        trial: A compiled step.
        plans: The same step's with other persistence thresholds.
        limit_bytes: What a device has.

    Returns:
        The settings of the one that by the formula sends least and, by what its plan
        holds more than the trial's, still fits; None if none saves anything to
        speak of.
    """
    plan = trial.compiled.plan
    least_moved = (1 - _WORTHWHILE) * plan_traffic(plan, elem_bytes=2).moved_bytes
    picked: ZeroConfig | None = None
    for other in plans:
        moved = plan_traffic(other, elem_bytes=2).moved_bytes
        predicted = trial.peak_bytes + least_bytes(other) - least_bytes(plan)
        if moved < least_moved and predicted <= limit_bytes:
            least_moved, picked = moved, other.config
    return picked
