"""Every instruction a compiled program runs, and how often.

Lives here: `walk_program`, which follows a program from its entry into loops,
branches, calls and fusions. May import: `hlo`, `loops`. Read next: `collectives.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from jzero.audit.hlo import Computation, Instruction, Module
from jzero.audit.loops import count_trips

__all__ = ["Place", "walk_program"]

# Which attributes name computations that an opcode runs once. Reductions, sorts and
# the like name a scalar function, which is no place of its own.
_CALLS: dict[str, tuple[str, ...]] = {
    "async-start": ("calls",),
    "call": ("to_apply", "calls"),
    "call-start": ("to_apply", "calls"),
    "conditional": ("branch_computations", "true_computation", "false_computation"),
    "fusion": ("calls",),
    "fusion-start": ("calls",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an instruction stands, by the loops and calls around it.

    Attributes:
        runs: Executions per run of the program: the trip counts of the loops around
            it, multiplied. A loop of unknown length counts once.
        is_runs_known: False if a loop around it hides how often it runs.
        is_conditional: It stands in a branch, which counts as taken.
        is_async: It stands in an asynchronous call.
    """

    runs: int = 1
    is_runs_known: bool = True
    is_conditional: bool = False
    is_async: bool = False


def walk_program(module: Module) -> Iterator[tuple[Computation, Instruction, Place]]:
    """Yields every instruction that runs, with its computation and place.

    A computation called from two places is walked twice. What the condition of a
    loop holds runs once more than what its body holds.
    """
    return _walk(module, module.entry_computation, Place())


def _walk(
    module: Module, computation: Computation, place: Place
) -> Iterator[tuple[Computation, Instruction, Place]]:
    for instruction in computation.instructions.values():
        yield computation, instruction, place
        for name, inner in _called(module, computation, instruction, place):
            yield from _walk(module, module.computations[name], inner)


def _called(
    module: Module, computation: Computation, instruction: Instruction, place: Place
) -> Iterator[tuple[str, Place]]:
    opcode = instruction.opcode
    if opcode == "while":
        trips = count_trips(module, computation, instruction)
        for attribute, extra in (("condition", 1), ("body", 0)):
            times = 1 if trips is None else trips + extra
            inner = replace(
                place,
                runs=place.runs * times,
                is_runs_known=place.is_runs_known and trips is not None,
            )
            for name in instruction.called(attribute):
                yield name, inner
        return
    attributes = _CALLS.get(opcode)
    if attributes is None:
        return
    inner = replace(
        place,
        is_conditional=place.is_conditional or opcode == "conditional",
        is_async=place.is_async or opcode.endswith("-start"),
    )
    for attribute in attributes:
        for name in instruction.called(attribute):
            yield name, inner
