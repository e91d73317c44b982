"""What the papers say a step must move, for one plan.

Lives here: `plan_traffic`. Source: ZeRO, arXiv 1910.02054, section 7: stages 0 to 2
move 2 Psi per device, stage 3 moves 3 Psi, of which each gather and each
reduce-scatter is one. With micro-batches gradients are reduced for each of them, and
stage 3 gathers for each of them as well. May import: plan. Read next: `step_report.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from jzero.plan.layout import spec_axes
from jzero.plan.plan import LeafPlan, Plan

__all__ = ["Traffic", "num_gathers", "plan_traffic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that one device sends per step, by kind of collective.

    Attributes:
        all_gather_bytes: Of parameters.
        reduce_scatter_bytes: Of gradients of sharded parameters.
        all_reduce_bytes: Of gradients of whole parameters.
    """

    all_gather_bytes: int
    reduce_scatter_bytes: int
    all_reduce_bytes: int

    @property
    def moved_bytes(self) -> int:
        """All of them."""
        return self.all_gather_bytes + self.reduce_scatter_bytes + self.all_reduce_bytes


def num_gathers(plan: Plan) -> int:
    """Returns how often a step gathers each parameter.

    At stage 3 twice for each micro-batch.
    """
    at_use = 2 * plan.num_micro_batches
    return {"none": 0, "once": 1, "at_use": at_use}[plan.placement.gather]


def plan_traffic(plan: Plan, *, elem_bytes: int) -> Traffic:
    """Returns the bytes that a step must move: forward and backward, accumulated.

    A parameter kept whole counts as all-reduced, which moves as much as the
    reduce-scatter and the gather that `replicate_params` makes of it.

    Args:
        plan: The plan of the step.
        elem_bytes: Bytes of one element as the model computes with it: 2 for 16 bits.

    Example:
        At stage 3, 10^9 parameters in 16 bits over 64 devices move 3 x 2 x 63/64 GB.
    """
    sizes = dict(plan.axis_sizes)
    num_shards = prod(sizes[axis] for axis in plan.zero_axes)
    num_batch = prod(sizes[axis] for axis in plan.batch_axes)
    gathered = scattered = reduced = 0.0
    num_passes = plan.num_micro_batches
    for leaf in _params(plan.state):
        base = prod(sizes[axis] for axis in spec_axes(leaf.base_spec))
        num_bytes = leaf.size_elems * elem_bytes / base
        if not leaf.is_sharded:
            reduced += num_passes * 2 * num_bytes * (num_batch - 1) / num_batch
            continue
        ring = num_bytes * (num_shards - 1) / num_shards
        gathered += num_gathers(plan) * ring
        scattered += num_passes * ring
        outer = num_batch // num_shards
        if outer > 1:
            share = num_bytes / num_shards
            reduced += num_passes * 2 * share * (outer - 1) / outer
    return Traffic(
        all_gather_bytes=round(gathered),
        reduce_scatter_bytes=round(scattered),
        all_reduce_bytes=round(reduced),
    )


def _params(leaves: Iterable[LeafPlan]) -> list[LeafPlan]:
    return [leaf for leaf in leaves if leaf.role == "parameter"]
