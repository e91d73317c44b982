"""Which argument of a program a value is a copy, a cast or a part of.

Lives here: `Origins`, which follows a value back through fusions and loops, also
through an array in which one loop stacks what another takes apart. May import: `hlo`.
Read next: `moved.py`.
"""

from __future__ import annotations

from jzero.audit.hlo import Computation, Instruction, Module

__all__ = ["Origins"]

# Operations that pass on what their first operand holds.
_FIRST = (
    "bitcast", "convert", "copy", "copy-done", "copy-start", "dynamic-slice",
    "fusion-done", "opt-barrier", "reshape", "slice", "transpose",
)  # fmt: skip
_FUSIONS = ("fusion", "fusion-start")


class Origins:
    """Finds the arguments behind values of one module."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._callers: dict[str, tuple[Computation, Instruction]] = {
            called: (computation, instruction)
            for computation in module.computations.values()
            for instruction in computation.instructions.values()
            if instruction.opcode in (*_FUSIONS, "while")
            for attribute in ("calls", "body")
            for called in instruction.called(attribute)
        }

    def argument(self, computation: Computation, name: str) -> Instruction | None:
        """Returns the program's parameter that a value comes from, if only moved.

        A value that a loop carries is the one that it starts with.
        """
        index: int | None = None
        seen: set[tuple[str, str, int | None]] = set()
        while (computation.name, name, index) not in seen:
            seen.add((computation.name, name, index))
            instruction = computation.instructions.get(name)
            if instruction is None:
                return None
            if instruction.opcode == "parameter" and (
                computation.name == self._module.entry
            ):
                return instruction
            step = self._before(computation, instruction, index)
            if step is None:
                return None
            computation, name, index = step
        return None

    def _before(
        self, computation: Computation, instruction: Instruction, index: int | None
    ) -> tuple[Computation, str, int | None] | None:
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "parameter" and computation.name in self._callers:
            home, call = self._callers[computation.name]
            return home, call.operands[int(instruction.operand_text)], index
        if opcode == "get-tuple-element":
            return computation, operands[0], int(instruction.attributes["index"])
        if opcode == "tuple" and index is not None:
            return computation, operands[index], None
        if opcode in (*_FUSIONS, "while"):
            called = instruction.called("body" if opcode == "while" else "calls")
            inner = self._module.computations[called[0]]
            return inner, inner.root, index
        if opcode == "dynamic-update-slice":
            return computation, operands[1], index
        if opcode in _FIRST:
            return computation, operands[0], index
        return None
