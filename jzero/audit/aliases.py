"""Which results of a compiled program reuse which of its arguments.

Lives here: `read_entry`, which reads the arguments of a program and the buffers that
donation let it reuse. May import: `hlo`, `shapes`. Read next: `step_report.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from jzero.audit.hlo import Module

__all__ = ["Argument", "read_arguments", "read_position"]

_ALIAS = re.compile(r"\{[\d, ]*\}:\s*\((\d+),")
_POSITION = re.compile(r"^(\w+)\[(\d+)\]\[(\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One array that a program takes.

    Attributes:
        number: Its number in the program; arrays that are never read have none.
        position: (argument of the step, leaf of that argument), None if the program
            does not say.
        name: Its name in the text.
        num_bytes: Bytes on one device.
        memory_space: 0 is device memory, 5 the host's.
        is_reused: A result takes over its buffer.
    """

    number: int
    position: tuple[int, int] | None
    name: str
    num_bytes: int
    memory_space: int
    is_reused: bool


def read_position(op_name: str) -> tuple[int, int] | None:
    """Returns (argument of the step, leaf of that argument) of a parameter's name."""
    match = _POSITION.match(op_name)
    return (int(match[2]), int(match[3])) if match else None


def read_arguments(module: Module) -> tuple[Argument, ...]:
    """Lists the arguments of a program, in order.

    Args:
        module: A program whose arguments are lists of leaves, as a step's are.
    """
    start = module.header.find("input_output_alias=")
    aliases = module.header[start:] if start >= 0 else ""
    reused = {int(number) for number in _ALIAS.findall(aliases)}
    found: list[Argument] = []
    for instruction in module.entry_computation.instructions.values():
        if instruction.opcode != "parameter":
            continue
        number = int(instruction.operand_text)
        shapes = instruction.shapes
        found.append(
            Argument(
                number=number,
                position=read_position(instruction.op_name),
                name=instruction.name,
                num_bytes=sum(shape.num_bytes for shape in shapes),
                memory_space=max((s.memory_space for s in shapes), default=0),
                is_reused=number in reused,
            )
        )
    return tuple(sorted(found, key=lambda argument: argument.number))
