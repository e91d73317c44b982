"""How many bytes of gradients wait for their reduction at once.

Lives here: `peak_waiting_bytes` and its finding. May import: `finding`, the audit's
facts, plan. Read next: `jzero/audit/step_report.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jzero.audit.facts import CollectiveFacts
from jzero.audit.findings.finding import Finding
from jzero.audit.hlo import Computation, Module
from jzero.audit.names import has_elems
from jzero.audit.shapes import ArrayShape
from jzero.plan.plan import LeafPlan, Plan

__all__ = ["find_waiting", "peak_waiting_bytes"]

_SAME = ("bitcast", "copy", "convert", "get-tuple-element", "reshape", "transpose")
_REDUCTIONS = ("reduce-scatter", "all-reduce")


def peak_waiting_bytes(
    module: Module, facts: Sequence[CollectiveFacts], *, min_bytes: int = 0
) -> int:
    """Returns the most bytes of whole gradients alive at once, on one device.

    A gradient is alive from the instruction that makes it to the end of its
    reduction, in the order of the schedule; each loop body counts for itself.

    Args:
        module: The compiled program.
        facts: Its collectives.
        min_bytes: Smaller ones are left out.
    """
    names = {fact.name for fact in facts if fact.kind in _REDUCTIONS}
    return max(
        (
            _peak(computation, names, min_bytes)
            for computation in module.computations.values()
            if names & computation.instructions.keys()
        ),
        default=0,
    )


def find_waiting(
    module: Module, facts: Sequence[CollectiveFacts], plan: Plan
) -> Iterator[Finding]:
    """Yields a finding if more gradients wait than the window allows.

    The window is exceeded by the gradient that fills it, and compilers join some
    small reductions; so twice the window and the largest gradient are allowed.
    """
    if not plan.placement.window:
        return
    params = [x for x in plan.state if x.role == "parameter" and x.is_sharded]
    # One turn of a loop over layers is a window of its own.
    counted = [
        fact
        for fact in facts
        if fact.kind in _REDUCTIONS
        and not all(_is_layer(x, fact.runs, params) for x in fact.operands)
    ]
    waiting_bytes = peak_waiting_bytes(module, counted)
    sizes = {leaf.size_elems for leaf in params}
    reduced = [x for fact in counted for x in fact.operands if x.num_elems in sizes]
    largest_bytes = max((operand.num_bytes for operand in reduced), default=0)
    window_bytes = plan.config.reduce_window_bytes
    allowed_bytes = 2 * window_bytes + largest_bytes
    if waiting_bytes <= allowed_bytes:
        return
    yield Finding(
        kind="gradient-alive",
        where=f"ZeroConfig(reduce_window_bytes={window_bytes})",
        num_bytes=waiting_bytes - allowed_bytes,
        detail=f"{waiting_bytes:,} bytes of whole gradients wait at once, where "
        f"{allowed_bytes:,} are allowed (twice the window and the largest gradient)",
        remedy="do not disable the pass `window`; let each gradient be reduced before "
        "the step reads it whole",
    )


def _is_layer(shape: ArrayShape, runs: int, params: Sequence[LeafPlan]) -> bool:
    return any(
        shape.num_elems != leaf.size_elems and has_elems(leaf, shape.num_elems, runs)
        for leaf in params
    )


def _peak(computation: Computation, names: set[str], min_bytes: int) -> int:
    order = {name: i for i, name in enumerate(computation.instructions)}
    # The end of an asynchronous one is another instruction.
    ends = {
        instruction.operands[0]: i
        for i, instruction in enumerate(computation.instructions.values())
        if instruction.opcode.endswith("-done")
    }
    changes: list[tuple[int, int]] = []
    for name in names & computation.instructions.keys():
        reduction = computation.instructions[name]
        end = ends.get(name, order[name])
        for operand in reduction.operands:
            born = operand
            while computation.instructions[born].opcode in _SAME:
                born = computation.instructions[born].operands[0]
            shapes = computation.instructions[operand].shapes
            num_bytes = sum(shape.num_bytes for shape in shapes)
            if num_bytes < min_bytes or order[born] >= end:
                continue
            changes += [(order[born], num_bytes), (end, -num_bytes)]
    alive = peak = 0
    for _, change in sorted(changes):
        alive += change
        peak = max(peak, alive)
    return peak
