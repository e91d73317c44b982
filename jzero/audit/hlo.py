"""Reads the text of a compiled program into computations and instructions.

Lives here: `parse_module`, a reader of optimized HLO text as `compiled.as_text()`
gives it on CPUs, GPUs and TPUs. Lines are cut into name, shape, opcode, operands and
the rest; the rest is read only when asked for, so that 10^5 lines take about a
second. May import: its siblings `shapes`, `attributes`, `sources`. Read next:
`collectives.py`, the main reader of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from jzero.audit.attributes import split_attributes, split_top_level
from jzero.audit.shapes import ArrayShape, read_shapes
from jzero.audit.sources import SourceTables, read_tables

__all__ = ["Computation", "Instruction", "Module", "parse_module"]

_HEADER = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)(?=[ (]).*\{$")
_START = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r" ([a-z][\w\-]*)\(")
_COMMENT = re.compile(r"/\*.*?\*/")
_BRACKET = re.compile(r'[()"]')
_STRING_END = re.compile(r'(?:[^"\\]|\\.)*"')
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_TRIPS = re.compile(r'known_trip_count\\?":?\s*\{\s*\\?"?n\\?"?\s*:\s*\\?"?(\d+)')
_NAME = re.compile(r"%([\w.\-]+)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. The texts are kept as they stand and read on demand.

    Attributes:
        name: Its name, without the percent sign.
        opcode: As in the text, so with `-start` or `-done` if asynchronous.
        shape_text: The shape of its result.
        operand_text: What stands between its parentheses.
        rest: What follows them.
    """

    name: str
    opcode: str
    shape_text: str
    operand_text: str
    rest: str

    @property
    def shapes(self) -> tuple[ArrayShape, ...]:
        """The arrays of its result, tuples flattened."""
        return read_shapes(self.shape_text)

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of its operands."""
        text = self.operand_text
        if "/*" in text:
            text = _COMMENT.sub("", text)
        # With printed operand shapes the name is the last word of each part.
        return tuple(
            part.rsplit(None, 1)[-1].lstrip("%") for part in split_top_level(text)
        )

    @property
    def attributes(self) -> dict[str, str]:
        """Its attributes by name, as texts."""
        return split_attributes(self.rest)

    @property
    def metadata(self) -> str:
        """The text of its metadata, empty if it has none."""
        return self.attributes.get("metadata", "")

    @property
    def op_name(self) -> str:
        """The path of the JAX operation it comes from, empty if unknown."""
        match = _OP_NAME.search(self.metadata)
        return match[1].replace('\\"', '"').replace("\\'", "'") if match else ""

    @property
    def known_trips(self) -> int | None:
        """How often the compiler says that this loop runs."""
        match = _TRIPS.search(self.attributes.get("backend_config", ""))
        return int(match[1]) if match else None

    def called(self, attribute: str) -> tuple[str, ...]:
        """Names of the computations that an attribute such as `calls` names."""
        text = self.attributes.get(attribute, "")
        found = _NAME.findall(text)
        if found or not text:
            return tuple(found)
        return tuple(name for name in re.split(r"[{},\s]+", text) if name)


@dataclass(frozen=True, slots=True)
class Computation:
    """A list of instructions in the order in which they run.

    Attributes:
        name: Its name, without the percent sign.
        instructions: By name, in order.
        root: The name of the one that is the result.
    """

    name: str
    instructions: dict[str, Instruction]
    root: str

    @property
    def root_instruction(self) -> Instruction | None:
        """The instruction that is the result."""
        return self.instructions.get(self.root)


@dataclass(frozen=True, slots=True)
class Module:
    """A compiled program.

    Attributes:
        name: The module's name, e.g. "jit_step".
        header: Its first line: aliasing, layouts of arguments and results.
        computations: By name.
        entry: The name of the one that runs first.
        num_devices: Partitions times replicas.
        sources: Tables of source lines.
    """

    name: str
    header: str
    computations: dict[str, Computation]
    entry: str
    num_devices: int
    sources: SourceTables

    @property
    def entry_computation(self) -> Computation:
        """The computation that runs first."""
        return self.computations[self.entry]


def parse_module(text: str) -> Module:
    """Reads optimized HLO text.

    Args:
        text: What `compiled.as_text()` returns.

    Returns:
        The program.

    Raises:
        ValueError: The text has no entry computation.

    Example:
        >>> module = parse_module('''HloModule m, num_partitions=4
        ...
        ... ENTRY %main (x: f32[8]) -> f32[8] {
        ...   %x = f32[8]{0} parameter(0)
        ...   ROOT %y = f32[8]{0} negate(%x)
        ... }
        ... ''')
        >>> module.entry_computation.root_instruction.operands
        ('x',)
    """
    lines = text.splitlines()
    computations: dict[str, Computation] = {}
    entry = ""
    preamble: list[str] = []
    name = root = ""
    instructions: dict[str, Instruction] | None = None
    for line in lines:
        if instructions is None:
            header = None if line.startswith("HloModule") else _HEADER.match(line)
            if header is None:
                preamble.append(line)
                continue
            name, root, instructions = header[2], "", {}
            if header[1]:
                entry = name
        elif line.startswith("}"):
            computations[name] = Computation(name, instructions, root)
            instructions = None
        elif (start := _START.match(line)) is not None:
            instruction = _read_instruction(line, start)
            instructions[instruction.name] = instruction
            if start[1]:
                root = instruction.name
    if not entry:
        raise ValueError("This is not the text of a compiled program: no ENTRY in it.")
    module_line = next((x for x in preamble if x.startswith("HloModule")), "")
    return Module(
        name=module_line[len("HloModule ") :].split(",", 1)[0].strip(),
        header=module_line,
        computations=computations,
        entry=entry,
        num_devices=_count(module_line, "num_partitions")
        * _count(module_line, "replica_count"),
        sources=read_tables(preamble),
    )


def _read_instruction(line: str, start: re.Match[str]) -> Instruction:
    # No shape has a space, a word and a parenthesis in a row, so the first such
    # place is the opcode, however deep the tuples in front of it are nested.
    opcode = _OPCODE.search(line, start.end() - 1)
    if opcode is None:
        raise ValueError(f"This line of HLO text has no opcode: {line[:200]!r}")
    close = _closing(line, opcode.end())
    return Instruction(
        start[2],
        opcode[1],
        line[start.end() : opcode.start()],
        line[opcode.end() : close],
        line[close + 1 :],
    )


def _closing(line: str, at: int) -> int:
    """Returns where the parenthesis opened just before `at` closes."""
    depth = 1
    while (bracket := _BRACKET.search(line, at)) is not None:
        at = bracket.end()
        if bracket[0] == '"':
            end = _STRING_END.match(line, at)
            at = end.end() if end else len(line)
        else:
            depth += 1 if bracket[0] == "(" else -1
            if depth == 0:
                return bracket.start()
    return len(line)


def _count(header: str, key: str) -> int:
    match = re.search(rf"\b{key}=(\d+)", header)
    return int(match[1]) if match else 1
