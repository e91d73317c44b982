"""What a compiled program sends between devices.

Lives here: `read_collectives`, which lists the collectives with their bytes and how
often they run. May import: its siblings `facts`, `hlo`, `walk`, `attributes`,
`shapes`. Read next: `step_report.py`.

    facts = read_collectives(compiled.as_text())
    sum(f.moved_bytes * f.runs for f in facts)            # bytes per device and step
    find_collectives(facts, kind="all-gather", dtype="f32", min_elems=2**14)
    find_collectives(facts, kind="all-reduce", min_elems=2**14)  # of any one leaf

Programs for GPUs join small arrays into one before they reduce them, so an all-reduce
of 20 000 elements may be of twenty leaves of 1000. `parts` are the joined arrays, and
`find_collectives` looks at those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args

from jzero.audit.attributes import ReplicaGroups, read_groups
from jzero.audit.facts import CollectiveFacts, CollectiveKind
from jzero.audit.hlo import Computation, Instruction, Module, parse_module
from jzero.audit.shapes import ArrayShape
from jzero.audit.walk import Place, walk_program

__all__ = ["read_collectives"]

_KINDS: dict[str, CollectiveKind] = {kind: kind for kind in get_args(CollectiveKind)}
# Operations whose result has the elements of their operand.
_SAME_ELEMENTS = ("bitcast", "convert", "copy", "reshape", "transpose")
_CHAIN = re.compile(r'chain_id="?(\d+)')
_CHAIN_START = "AsyncCollectiveStart"


def read_collectives(program: str | Module) -> tuple[CollectiveFacts, ...]:
    """Lists the collectives of a compiled program, in program order.

    Args:
        program: `compiled.as_text()`, or the module read from it.

    Returns:
        One entry per place and dtype. A computation called from two places gives its
        entries twice. Collectives in the condition of a loop run once more than
        those in its body.

    Source:
        Bytes per ring algorithm: Patarasuk and Yuan, "Bandwidth optimal all-reduce
        algorithms for clusters of workstations", 2009.

    Example:
        >>> text = '''HloModule m, num_partitions=4
        ...
        ... ENTRY %main (x: f32[8]) -> f32[32] {
        ...   %x = f32[8]{0} parameter(0)
        ...   ROOT %y = f32[32]{0} all-gather(%x), replica_groups=[1,4]<=[4]
        ... }'''
        >>> [(f.kind, f.operand_bytes, f.moved_bytes) for f in read_collectives(text)]
        [('all-gather', 32, 96)]
    """
    module = parse_module(program) if isinstance(program, str) else program
    chains = _started_chains(module)
    facts: list[CollectiveFacts] = []
    for computation, instruction, place in walk_program(module):
        kind = _kind(computation, instruction)
        if kind is None or _is_repeated(computation, instruction, chains):
            continue
        facts.extend(_facts(module, computation, instruction, kind, place))
    return tuple(facts)


def _facts(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    kind: CollectiveKind,
    place: Place,
) -> Iterator[CollectiveFacts]:
    attributes = instruction.attributes
    if attributes.get("is_host_transfer") == "true":
        return
    groups = _groups(module, kind, attributes)
    by_dtype: dict[str, tuple[list[ArrayShape], list[ArrayShape], list[int]]] = {}
    # What follows the data of these two is offsets, sizes and tokens.
    count = 1 if kind in ("ragged-all-to-all", "send") else None
    for index, name in enumerate(instruction.operands[:count]):
        producer = computation.instructions[name]
        for shape in producer.shapes:
            if shape.elem_bits == 0:
                continue
            operands, parts, indices = by_dtype.setdefault(shape.dtype, ([], [], []))
            operands.append(shape)
            indices.append(index)
            parts.extend(_parts(module, computation, producer, shape))
    is_async = (
        place.is_async
        or instruction.opcode.endswith("-start")
        or _starts_chain(computation)
    )
    for dtype, (operands, parts, indices) in by_dtype.items():
        operand_bytes = sum(shape.num_bytes for shape in operands)
        yield CollectiveFacts(
            kind=kind,
            dtype=dtype,
            operands=tuple(operands),
            parts=tuple(parts),
            operand_bytes=operand_bytes,
            moved_bytes=_moved_bytes(kind, operand_bytes, groups.group_size),
            runs=place.runs,
            is_runs_known=place.is_runs_known,
            is_conditional=place.is_conditional,
            group_size=groups.group_size,
            num_groups=groups.num_groups,
            is_async=is_async and '"is_sync":true' not in instruction.rest,
            op_name=instruction.op_name,
            source=module.sources.source(instruction.metadata),
            name=instruction.name,
            indices=tuple(indices),
        )


def _kind(computation: Computation, instruction: Instruction) -> CollectiveKind | None:
    kind = _KINDS.get(instruction.opcode.removesuffix("-start"))
    # TPUs spell a reduce-scatter as a fusion of an all-reduce and a slice.
    if kind == "all-reduce" and computation.name.startswith("all-reduce-scatter"):
        return "reduce-scatter"
    return kind


def _started_chains(module: Module) -> frozenset[str]:
    """Returns the asynchronous collectives that TPU programs spread over fusions."""
    return frozenset(
        chain
        for computation in module.computations.values()
        if _starts_chain(computation)
        for instruction in computation.instructions.values()
        for chain in _CHAIN.findall(instruction.rest)
    )


def _is_repeated(
    computation: Computation, instruction: Instruction, chains: frozenset[str]
) -> bool:
    """Says whether this is the middle or the end of a collective, and not its start.

    On TPUs the fusion that starts a collective, those that compute meanwhile, and the
    one that ends it all spell the whole collective, with one chain number.
    """
    chain = _CHAIN.search(instruction.rest)
    return chain is not None and chain[1] in chains and not _starts_chain(computation)


def _starts_chain(computation: Computation) -> bool:
    root = computation.root_instruction
    return root is not None and _CHAIN_START in root.rest


def _groups(
    module: Module, kind: CollectiveKind, attributes: dict[str, str]
) -> ReplicaGroups:
    if kind == "send":
        return ReplicaGroups(num_groups=1, group_size=2)
    if kind == "collective-permute":
        pairs = attributes.get("source_target_pairs", "").count("},{") + 1
        return ReplicaGroups(num_groups=pairs, group_size=2)
    return read_groups(attributes.get("replica_groups"), module.num_devices)


def _moved_bytes(kind: CollectiveKind, operand_bytes: int, group_size: int) -> int:
    n = group_size
    match kind:
        case "all-gather":
            return operand_bytes * (n - 1)
        case "all-reduce":
            return round(2 * operand_bytes * (n - 1) / n)
        case "reduce-scatter" | "all-to-all" | "ragged-all-to-all":
            return round(operand_bytes * (n - 1) / n)
    return operand_bytes


def _parts(
    module: Module, computation: Computation, producer: Instruction, shape: ArrayShape
) -> list[ArrayShape]:
    """Returns the arrays that an operand joins, or the operand itself."""
    while producer.opcode in _SAME_ELEMENTS:
        producer = computation.instructions[producer.operands[0]]
    if producer.opcode == "fusion":
        called = module.computations[producer.called("calls")[0]]
        root = called.root_instruction
        if root is None:
            return [shape]
        return _parts(module, called, root, shape)
    if producer.opcode != "concatenate":
        return [shape]
    return [
        part
        for name in producer.operands
        for part in computation.instructions[name].shapes
    ]
