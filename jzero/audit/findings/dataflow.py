"""Where values of a compiled program come from and what is done with them.

Lives here: `Flow`, the users and sources of the instructions of one module. May
import: `hlo`. Read next: `moved.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from jzero.audit.hlo import Computation, Instruction, Module

__all__ = ["SAME_OR_CAST", "Flow"]

_SAME = ("bitcast", "copy", "reshape", "transpose", "get-tuple-element")
SAME_OR_CAST = (*_SAME, "convert")
# What cuts a joined array up again passes its parts on.
_PARTS = (*SAME_OR_CAST, "slice")
_DEPTH = 8


class Flow:
    """Users and sources within the computations of a module; computed on demand."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._users: dict[str, dict[str, list[Instruction]]] = {}

    def users(self, computation: Computation, name: str) -> list[Instruction]:
        """Returns the instructions that take a value as an operand."""
        table = self._users.get(computation.name)
        if table is None:
            table = self._users[computation.name] = {}
            for instruction in computation.instructions.values():
                for operand in instruction.operands:
                    table.setdefault(operand, []).append(instruction)
        return table.get(name, [])

    def parts(
        self, computation: Computation, name: str, index: int
    ) -> Iterator[Instruction]:
        """Yields the instructions that take one part out of a tuple, or of its end."""
        for user in self.users(computation, name):
            if user.opcode.endswith("-done"):
                yield from self.parts(computation, user.name, index)
            elif user.attributes.get("index") == str(index):
                yield user

    def readers(
        self,
        computation: Computation,
        name: str,
        index: int | None = None,
        through: tuple[str, ...] = _SAME,
    ) -> Iterator[tuple[Computation, Instruction, str]]:
        """Yields what really reads a value: through copies, ends and fusions.

        Args:
            computation: Where the value is.
            name: Its instruction.
            index: Which part of a tuple; None for all of it.
            through: Operations that pass the value on.

        Yields:
            (computation, instruction, name of the operand that is the value).
        """
        for user in self.users(computation, name):
            if user.opcode == "get-tuple-element":
                if index is None or user.attributes.get("index") == str(index):
                    yield from self.readers(computation, user.name, None, through)
            elif user.opcode.endswith("-done"):
                yield from self.readers(computation, user.name, index, through)
            elif user.opcode in through:
                yield from self.readers(computation, user.name, None, through)
            elif user.opcode == "fusion":
                inner = self._module.computations[user.called("calls")[0]]
                for position, operand in enumerate(user.operands):
                    if operand == name:
                        inside = self._readers_inside(inner, position, through)
                        for where, reader, read in inside:
                            if reader is not None:
                                yield where, reader, read
                                continue
                            part = int(read) if read else None
                            yield from self.readers(
                                computation, user.name, part, through
                            )
            else:
                yield computation, user, name

    def _readers_inside(
        self, inner: Computation, position: int, through: tuple[str, ...]
    ) -> Iterator[tuple[Computation, Instruction | None, str]]:
        """Yields readers; None where the value itself leaves the fusion.

        The text beside None is which part of the fusion's result it is, if of several.
        """
        for instruction in inner.instructions.values():
            if instruction.opcode != "parameter":
                continue
            if instruction.operand_text != str(position):
                continue
            passed = [instruction.name]
            for name in passed:
                if name == inner.root:
                    yield inner, None, ""
                passed += [
                    user.name
                    for user in self.users(inner, name)
                    if user.opcode in through
                ]
            for where, reader, read in self.readers(
                inner, instruction.name, None, through
            ):
                if reader.opcode == "tuple" and reader.name == inner.root:
                    yield inner, None, str(reader.operands.index(read))
                else:
                    yield where, reader, read

    def is_only_sliced(
        self, computation: Computation, name: str, index: int | None = None
    ) -> bool:
        """Says whether all that is read of a value is a slice that data choose."""
        readers = list(self.readers(computation, name, index, _PARTS))
        return bool(readers) and all(
            reader.opcode == "dynamic-slice" and reader.operands[0] == operand
            for _, reader, operand in readers
        )

    def is_only_cast(
        self,
        computation: Computation,
        name: str,
        dtypes: tuple[str, ...],
        index: int | None = None,
    ) -> bool:
        """Says whether every reader casts a value to one of some dtypes."""
        readers = list(self.readers(computation, name, index))
        return bool(readers) and all(
            reader.opcode == "convert" and reader.shapes[0].dtype in dtypes
            for _, reader, _ in readers
        )

    def comes_from(
        self, computation: Computation, name: str, opcode: str, depth: int = _DEPTH
    ) -> bool:
        """Says whether an opcode is among the near sources of a value."""
        instruction = computation.instructions.get(name)
        if instruction is None or depth == 0:
            return False
        if instruction.opcode == opcode:
            return True
        if instruction.opcode == "fusion":
            inner = self._module.computations[instruction.called("calls")[0]]
            if any(x.opcode == opcode for x in inner.instructions.values()):
                return True
        return any(
            self.comes_from(computation, operand, opcode, depth - 1)
            for operand in instruction.operands
        )
