"""The order of the passes, and switching one off by name.

May import: the passes. Read next: any of them.
"""

from __future__ import annotations

from jzero.ir.trace import Pass, TracedStep
from jzero.passes.activations import offload_activations
from jzero.passes.gather import gather_at_use
from jzero.passes.offload import offload
from jzero.passes.reduce import reduce_at_birth
from jzero.passes.spread_batch import spread_batch
from jzero.passes.window import window
from jzero.plan.plan import Plan

PASSES: tuple[Pass, ...] = (
    spread_batch,
    reduce_at_birth,
    window,
    gather_at_use,
    offload_activations,
    offload,
)


def run_passes(step: TracedStep, plan: Plan) -> TracedStep:
    """Applies every pass that the config does not switch off, in order.

    Args:
      step: the traced step.
      plan: its plan; `plan.config.disable_passes` names passes to leave out.

    Returns:
      The rewritten step; it computes the same function.
    """
    for rewrite in PASSES:
        if rewrite.__name__ not in plan.config.disable_passes:
            step = rewrite(step, plan)
    return step
