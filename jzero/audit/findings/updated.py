"""Which leaf of the state a value of a compiled program goes into.

Lives here: `find_updated_leaf`, which follows a gradient to the first element-wise
operation where it meets a leaf, its moment or itself. May import: `aliases`,
`dataflow`, `hlo`, plan. Read next: `moved.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jzero.audit.aliases import read_position
from jzero.audit.findings.dataflow import Flow
from jzero.audit.hlo import Computation, Instruction, Module
from jzero.plan.plan import LeafPlan

__all__ = ["find_updated_leaf"]

_PASS_ON = (
    "add", "bitcast", "convert", "copy", "divide", "dynamic-slice",
    "dynamic-update-slice", "fusion",
    "get-tuple-element", "multiply", "negate", "reshape", "select", "slice",
    "subtract", "transpose",
)  # fmt: skip
_MAX_NODES = 400

# An instruction, and the fusion that it is in, if it is in one.
_Node = tuple[Instruction, Instruction | None]


def find_updated_leaf(
    module: Module,
    flow: Flow,
    home: Computation,
    name: str,
    index: int | None,
    leaves: Mapping[tuple[int, int], LeafPlan],
) -> LeafPlan | None:
    """Returns the leaf that a value is combined with first, if one is found.

    Args:
        module: The program.
        flow: Users of its values.
        home: The entry, or the body of a loop, out of which the value is followed.
        name: The value's instruction there.
        index: Which part of a tuple; None for all of it.
        leaves: State leaves by (argument, leaf of that argument).

    Returns:
        The leaf; an optimizer's leaf if that is met before its parameter.
    """
    tracer = _Tracer(module, flow, leaves, home)
    leaf = tracer.meet(home.instructions[name], index)
    if leaf is not None or home.name == module.entry:
        return leaf
    for outer in module.computations.values():
        for loop in outer.instructions.values():
            if loop.opcode != "while" or home.name not in loop.called("body"):
                continue
            for out in tracer.outs:
                leaf = find_updated_leaf(module, flow, outer, loop.name, out, leaves)
                if leaf is not None:
                    return leaf
    return None


class _Tracer:
    def __init__(
        self,
        module: Module,
        flow: Flow,
        leaves: Mapping[tuple[int, int], LeafPlan],
        top: Computation,
    ) -> None:
        self.module = module
        self.flow = flow
        self.leaves = leaves
        self.top = top
        # Which results of a loop's body the value goes into.
        self.outs: list[int] = []

    def meet(self, start: Instruction, index: int | None) -> LeafPlan | None:
        nodes: list[_Node] = list(self._after((start, None), index))
        before: set[_Node] = {(start, None)}
        for node in nodes:
            if node in before or len(before) > _MAX_NODES:
                continue
            leaf = self._met(node, before)
            if leaf is not None:
                return leaf
            before.add(node)
            nodes += self._after(node)
        return None

    def _home(self, node: _Node) -> Computation:
        fusion = node[1]
        if fusion is None:
            return self.top
        return self.module.computations[fusion.called("calls")[0]]

    def _after(self, node: _Node, index: int | None = None) -> Iterator[_Node]:
        """What reads a value, inside fusions too."""
        instruction, fusion = node
        home = self._home(node)
        if fusion is not None and instruction.name == home.root:
            yield from self._after((fusion, None))
        for user in self.flow.users(home, instruction.name):
            if user.opcode.endswith("-done"):
                yield from self._after((user, fusion), index)
            elif user.opcode == "get-tuple-element" and index is not None:
                if user.attributes.get("index") == str(index):
                    yield user, fusion
            elif user.opcode == "fusion":
                yield from self._inside(user, instruction)
            elif user.opcode == "tuple" and fusion is not None:
                number = user.operands.index(instruction.name)
                for part in self.flow.parts(self.top, fusion.name, number):
                    yield from self._after((part, None))
            elif user.opcode == "tuple" and user.name == self.top.root:
                self.outs.append(user.operands.index(instruction.name))
            elif user.opcode in _PASS_ON:
                yield user, fusion

    def _inside(self, fusion: Instruction, operand: Instruction) -> Iterator[_Node]:
        """What reads an operand of a fusion within it."""
        inner = self.module.computations[fusion.called("calls")[0]]
        for x in inner.instructions.values():
            if x.opcode != "parameter":
                continue
            if fusion.operands[int(x.operand_text)] == operand.name:
                yield from self._after((x, fusion))

    def _met(self, node: _Node, before: set[_Node]) -> LeafPlan | None:
        """The leaf among what an operation combines a value with."""
        instruction, fusion = node
        home = self._home(node)
        if len(instruction.operands) < 2 or "slice" in instruction.opcode:
            return None
        stack: list[_Node] = [
            (home.instructions[operand], fusion) for operand in instruction.operands
        ]
        num_elems = instruction.shapes[0].num_elems
        for other in stack:
            if other in before or len(stack) > _MAX_NODES:
                continue
            found, inside = other
            if found.opcode == "parameter" and inside is not None:
                name = inside.operands[int(found.operand_text)]
                stack.append((self.top.instructions[name], None))
            elif found.opcode == "parameter":
                position = read_position(found.op_name)
                leaf = self.leaves.get(position) if position else None
                if leaf is not None and found.shapes[0].num_elems == num_elems:
                    return leaf
            elif found.opcode in _PASS_ON and found.opcode != "fusion":
                at = self._home(other)
                stack += [(at.instructions[x], inside) for x in found.operands]
        return None
