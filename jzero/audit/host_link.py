"""What a compiled program copies between device and host memory.

Lives here: `HostTraffic` and the count of it. Only copies are counted, and the parts
that loops cut out of or write into arrays in host memory. May import: `hlo`, `walk`.
Read next: `step_report.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from jzero.audit.hlo import Computation, Instruction, Module
from jzero.audit.shapes import ArrayShape
from jzero.audit.walk import walk_program

__all__ = ["HostTraffic", "read_host_traffic"]

_HOST_SPACE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTraffic:
    """Bytes per device and step over the link to host memory.

    Attributes:
        to_device_bytes: Copied in.
        to_host_bytes: Copied back.
    """

    to_device_bytes: int = 0
    to_host_bytes: int = 0


def read_host_traffic(module: Module) -> HostTraffic:
    """Counts what a program copies to and from host memory, loops times their trips.

    Programs for CPUs have one memory and show no copies.
    """
    totals = {True: 0, False: 0}
    for computation, instruction, place in walk_program(module):
        moved = _moved(computation, instruction)
        if moved is not None:
            array, is_to_device = moved
            totals[is_to_device] += array.num_bytes * place.runs
        elif _ends_host_call(computation, instruction):
            results = [s for s in instruction.shapes if s.memory_space != _HOST_SPACE]
            totals[True] += sum(s.num_bytes for s in results) * place.runs
    return HostTraffic(to_device_bytes=totals[True], to_host_bytes=totals[False])


def _ends_host_call(computation: Computation, instruction: Instruction) -> bool:
    """Whether results of a computation on the host arrive, some on the device."""
    if instruction.opcode not in ("custom-call-done", "call-done", "async-done"):
        return False
    start = computation.instructions.get(instruction.operands[0])
    return start is not None and 'custom_call_target="HostExecute"' in start.rest


def _moved(
    computation: Computation, instruction: Instruction
) -> tuple[ArrayShape, bool] | None:
    """The array that an instruction copies, and whether to the device."""
    opcode = instruction.opcode
    if opcode == "copy-start":
        new, old = instruction.shapes[:2]
        return _crossing(old, new, new)
    if opcode not in ("copy", "dynamic-slice", "slice", "dynamic-update-slice"):
        return None
    operands = [computation.instructions.get(name) for name in instruction.operands]
    source = operands[1 if opcode == "dynamic-update-slice" else 0]
    if source is None or len(source.shapes) != 1:
        return None
    (old,), (new,) = source.shapes, instruction.shapes
    return _crossing(old, new, old if opcode == "dynamic-update-slice" else new)


def _crossing(
    old: ArrayShape, new: ArrayShape, array: ArrayShape
) -> tuple[ArrayShape, bool] | None:
    was_on_host = old.memory_space == _HOST_SPACE
    is_on_host = new.memory_space == _HOST_SPACE
    return None if was_on_host == is_on_host else (array, was_on_host)
