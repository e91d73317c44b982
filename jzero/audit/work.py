"""How much one instruction of a compiled program computes and reads.

Lives here: `Work` and `WorkCounter`, which count floating point operations of matrix
products and convolutions, and bytes that pass between memory and the processor. May
import: `hlo`. Read next: `timeline.py`, which turns work into time.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, cast

from jzero.audit.hlo import Computation, Instruction, Module

__all__ = ["Work", "WorkCounter"]

_FREE = frozenset(
    (
        "after-all", "bitcast", "conditional", "constant", "get-tuple-element", "iota",
        "opt-barrier", "parameter", "partition-id", "replica-id", "tuple", "while",
    )
)  # fmt: skip
_SLICES = ("dynamic-slice", "gather", "slice")
_CALLED = ("fusion", "call", "async-start", "fusion-start", "call-start")
_LABELS = re.compile(r"(\w+)_(\w+)->(\w+)")


@dataclass(frozen=True, slots=True)
class Work:
    """What one execution of an instruction costs one device.

    Attributes:
        flops: Floating point operations of products; a multiply-add counts two.
        accessed_bytes: Bytes read and written; operands that a fusion only slices
            count as what it takes of them.
    """

    flops: int = 0
    accessed_bytes: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops, self.accessed_bytes + other.accessed_bytes
        )

    def times(self, runs: int) -> Work:
        """Returns the work of several executions."""
        return Work(self.flops * runs, self.accessed_bytes * runs)


class WorkCounter:
    """Counts work of the instructions of one module; remembers fusions."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._flops: dict[str, int] = {}

    def count(self, computation: Computation, instruction: Instruction) -> Work:
        """Returns the work of one execution; loops and branches count nothing."""
        if instruction.opcode in _FREE or instruction.opcode.endswith("-done"):
            return Work()
        return Work(
            flops=self._count_flops(computation, instruction),
            accessed_bytes=self._count_bytes(computation, instruction),
        )

    def _count_flops(self, computation: Computation, instruction: Instruction) -> int:
        opcode = instruction.opcode
        if opcode in _CALLED:
            names = instruction.called("calls") or instruction.called("to_apply")
            return sum(self._flops_inside(name) for name in names)
        if opcode == "dot":
            return _dot_flops(computation, instruction, instruction.attributes)
        if opcode == "convolution":
            return _convolution_flops(computation, instruction)
        if opcode == "custom-call":
            config = _gemm_config(instruction)
            return _dot_flops(computation, instruction, config) if config else 0
        return 0

    def _flops_inside(self, name: str) -> int:
        if name not in self._flops:
            inner = self._module.computations[name]
            self._flops[name] = sum(
                self._count_flops(inner, instruction)
                for instruction in inner.instructions.values()
            )
        return self._flops[name]

    def _count_bytes(self, computation: Computation, instruction: Instruction) -> int:
        operands = [computation.instructions.get(name) for name in instruction.operands]
        sizes = [_size_bytes(operand) for operand in operands]
        result_bytes = _size_bytes(instruction)
        if instruction.opcode in _SLICES:
            return 2 * result_bytes
        if instruction.opcode == "dynamic-update-slice":
            return 2 * sizes[1]
        if instruction.opcode == "fusion":
            inner = self._module.computations[instruction.called("calls")[0]]
            for index, taken_bytes in _sliced_parameters(inner).items():
                sizes[index] = min(sizes[index], taken_bytes)
            written_bytes = _updated_bytes(inner)
            if written_bytes is not None:
                result_bytes = min(result_bytes, written_bytes)
        return sum(sizes) + result_bytes


def _size_bytes(instruction: Instruction | None) -> int:
    if instruction is None:
        return 0
    return sum(shape.num_bytes for shape in instruction.shapes)


def _sliced_parameters(computation: Computation) -> dict[int, int]:
    """Parameters of a fusion that it only slices, and the bytes that it takes."""
    taken: dict[str, int] = {}
    whole: set[str] = set()
    for instruction in computation.instructions.values():
        for position, name in enumerate(instruction.operands):
            if position == 0 and instruction.opcode in _SLICES:
                taken[name] = taken.get(name, 0) + _size_bytes(instruction)
            elif position == 0 and instruction.opcode == "dynamic-update-slice":
                taken.setdefault(name, 0)
            else:
                whole.add(name)
    return {
        int(instruction.operand_text): taken[name]
        for name, instruction in computation.instructions.items()
        if instruction.opcode == "parameter" and name in taken and name not in whole
    }


def _updated_bytes(computation: Computation) -> int | None:
    """Bytes that a fusion writes if all it does is to update a part of an array."""
    root = computation.root_instruction
    while root is not None and root.opcode == "bitcast":
        root = computation.instructions.get(root.operands[0])
    if root is None or root.opcode != "dynamic-update-slice":
        return None
    return _size_bytes(computation.instructions.get(root.operands[1]))


def _dot_flops(
    computation: Computation, instruction: Instruction, attributes: dict[str, str]
) -> int:
    lhs = computation.instructions.get(instruction.operands[0])
    shapes = instruction.shapes
    if lhs is None or not shapes:
        return 0
    dims = lhs.shapes[0].dims
    contracted = re.findall(r"\d+", attributes.get("lhs_contracting_dims", ""))
    depth = math.prod(dims[int(dim)] for dim in contracted)
    return 2 * shapes[0].num_elems * depth


def _convolution_flops(computation: Computation, instruction: Instruction) -> int:
    kernel = computation.instructions.get(instruction.operands[1])
    labels = _LABELS.search(instruction.attributes.get("dim_labels", ""))
    if kernel is None or labels is None:
        return 0
    dims = kernel.shapes[0].dims
    features = dims[labels[2].index("o")]
    depth = math.prod(dims) // max(features, 1)
    return 2 * instruction.shapes[0].num_elems * depth


def _gemm_config(instruction: Instruction) -> dict[str, str] | None:
    """Contracting dims of a product that a library computes, None for other calls."""
    if "gemm" not in instruction.rest and "matmul" not in instruction.rest:
        return None
    try:
        config: Any = json.loads(instruction.attributes.get("backend_config", ""))
    except json.JSONDecodeError:
        return None
    numbers = _find(config, "dot_dimension_numbers") or {}
    dims = numbers.get("lhs_contracting_dimensions", ["1"])
    return {"lhs_contracting_dims": " ".join(map(str, dims))}


def _find(tree: Any, key: str) -> Any:
    if not isinstance(tree, dict):
        return None
    branch = cast(dict[str, Any], tree)
    if key in branch:
        return branch[key]
    return next((x for v in branch.values() if (x := _find(v, key))), None)
