"""How often the loops of a compiled program run.

Lives here: `count_trips`. The compiler usually writes the number down; where it does
not, a loop that counts from one constant to another by a third is worked out. May
import: `hlo`. Read next: `collectives.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from jzero.audit.hlo import Computation, Instruction, Module

__all__ = ["count_trips"]

_SAME = ("copy", "bitcast", "convert")
_INT = re.compile(r"-?\d+")
_SWAPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


def count_trips(module: Module, caller: Computation, loop: Instruction) -> int | None:
    """Returns how often the body of a `while` runs, or None if the text hides it.

    Args:
        module: The program.
        caller: The computation that holds the loop.
        loop: The `while` instruction.

    Returns:
        The trip count: the compiler's own, else the one that follows from a counter
        with constant start, step and limit. None for any other loop.
    """
    if (known := loop.known_trips) is not None:
        return known
    condition = module.computations.get(next(iter(loop.called("condition")), ""))
    body = module.computations.get(next(iter(loop.called("body")), ""))
    if condition is None or body is None:
        return None
    test = _read_test(module, condition)
    if test is None:
        return None
    index, direction, limit = test
    start = _read_start(caller, loop, index)
    step = _read_step(module, body, index)
    if start is None or not step:
        return None
    return _trips(start, step, limit, direction)


def _trips(start: int, step: int, limit: int, direction: str) -> int | None:
    distance = limit - start
    if direction == "NE":
        return distance // step if distance % step == 0 and distance >= 0 else None
    if (direction in ("LT", "LE")) != (step > 0):
        return None
    if direction in ("LE", "GE"):
        distance += 1 if step > 0 else -1
    return max(0, -(-distance // step))


def _read_test(module: Module, condition: Computation) -> tuple[int, str, int] | None:
    """Returns the counter's place in the carry, the comparison and the limit."""
    root = condition.root_instruction
    if root is None:
        return None
    compare, names = _unwrap(module, condition, root)
    if compare is None or compare.opcode != "compare" or len(names) != 2:
        return None
    direction = compare.attributes.get("direction", "")
    sides = [_follow(condition, name) for name in names]
    counters = [_carry_index(condition, side) for side in sides]
    constants = [_constant(side) for side in sides]
    if direction not in _SWAPPED:
        return None
    if counters[0] is not None and constants[1] is not None:
        return counters[0], direction, constants[1]
    if counters[1] is not None and constants[0] is not None:
        return counters[1], _SWAPPED[direction], constants[0]
    return None


def _read_start(caller: Computation, loop: Instruction, index: int) -> int | None:
    carry = _follow(caller, next(iter(loop.operands), ""))
    if carry is None or carry.opcode != "tuple" or index >= len(carry.operands):
        return None
    return _constant(_follow(caller, carry.operands[index]))


def _read_step(module: Module, body: Computation, index: int) -> int | None:
    root = body.root_instruction
    if root is None or root.opcode != "tuple" or index >= len(root.operands):
        return None
    new = _follow(body, root.operands[index])
    if new is None:
        return None
    add, names = _unwrap(module, body, new)
    if add is None or add.opcode not in ("add", "subtract") or len(names) != 2:
        return None
    left, right = (_follow(body, name) for name in names)
    if add.opcode == "add" and _carry_index(body, right) == index:
        left, right = right, left
    step = _constant(right)
    if _carry_index(body, left) != index or step is None:
        return None
    return step if add.opcode == "add" else -step


def _unwrap(
    module: Module, computation: Computation, instruction: Instruction
) -> tuple[Instruction | None, tuple[str, ...]]:
    """Looks into a fusion of one operation: the operation, and its operands' names.

    The names are those of the surrounding computation. A constant inside of the
    fusion has no name there, which makes the pattern fail.
    """
    if instruction.opcode not in ("fusion", "call"):
        return instruction, instruction.operands
    called = instruction.called("calls") or instruction.called("to_apply")
    inner = module.computations.get(next(iter(called), ""))
    if inner is None or inner.root_instruction is None:
        return None, ()
    outer = instruction.operands
    names = _outer_names(inner.instructions, inner.root_instruction.operands, outer)
    return inner.root_instruction, names


def _outer_names(
    inner: Mapping[str, Instruction], names: tuple[str, ...], outer: tuple[str, ...]
) -> tuple[str, ...]:
    found: list[str] = []
    for name in names:
        instruction = inner.get(name)
        if instruction is None or instruction.opcode != "parameter":
            return ()
        found.append(outer[int(instruction.operand_text)])
    return tuple(found)


def _follow(computation: Computation, name: str) -> Instruction | None:
    instruction = computation.instructions.get(name)
    while instruction is not None and instruction.opcode in _SAME:
        instruction = computation.instructions.get(instruction.operands[0])
    return instruction


def _carry_index(
    computation: Computation, instruction: Instruction | None
) -> int | None:
    if instruction is None or instruction.opcode != "get-tuple-element":
        return None
    source = computation.instructions.get(instruction.operands[0])
    if source is None or source.opcode != "parameter":
        return None
    return int(instruction.attributes.get("index", "-1"))


def _constant(instruction: Instruction | None) -> int | None:
    if instruction is None or instruction.opcode != "constant":
        return None
    match = _INT.fullmatch(instruction.operand_text.strip())
    return int(match[0]) if match else None
