"""What is known of one collective of a compiled program, and sums over many.

Lives here: `CollectiveFacts`, `total_collectives`, which sums by kind and dtype, and
`find_collectives`, which picks. May import: `shapes`. Read next: `collectives.py`,
which makes the facts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from jzero.audit.shapes import ArrayShape

__all__ = [
    "CollectiveFacts",
    "CollectiveKind",
    "CollectiveTotals",
    "find_collectives",
    "total_collectives",
]

CollectiveKind = Literal[
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
    "send",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFacts:
    """One collective of the program and one dtype of its operands.

    A variadic collective over arrays of several dtypes gives one entry per dtype.

    Attributes:
        kind: Which collective.
        dtype: HLO's name of the operands' dtype.
        operands: The arrays that go in, as they are on one device.
        parts: The operands, those that join several arrays replaced by these.
        operand_bytes: Bytes of the operands on one device.
        moved_bytes: Bytes that one device sends in one execution, by the ring
            algorithms; n is the group size. all-gather: operand x (n-1); all-reduce:
            2 x operand x (n-1)/n; reduce-scatter and all-to-all: operand x (n-1)/n;
            the others: operand.
        runs: Executions per step: trip counts of the loops around it, multiplied.
        is_runs_known: False if a loop around it hides how often it runs; such a loop
            counts once.
        is_conditional: It stands in a branch; it counts as if the branch is taken.
        group_size: Devices that exchange with one another; 2 for a permutation.
        num_groups: Groups side by side; sender-receiver pairs for a permutation.
        is_async: Other work may run between its start and its end.
        op_name: Path of the JAX operation, empty if unknown.
        source: "file:line" of the user's code, None if unknown.
        name: The instruction's name in the text.
        indices: Which operands of the instruction these are.
    """

    kind: CollectiveKind
    dtype: str
    operands: tuple[ArrayShape, ...]
    parts: tuple[ArrayShape, ...]
    operand_bytes: int
    moved_bytes: int
    runs: int
    is_runs_known: bool
    is_conditional: bool
    group_size: int
    num_groups: int
    is_async: bool
    op_name: str
    source: str | None
    name: str
    indices: tuple[int, ...] = (0,)

    @property
    def step_moved_bytes(self) -> int:
        """Bytes that one device sends per step: `moved_bytes` times `runs`."""
        return self.moved_bytes * self.runs

    @property
    def max_part_elems(self) -> int:
        """Elements of the largest part; of a gathered one, all of them."""
        largest = max((part.num_elems for part in self.parts), default=0)
        return largest * (self.group_size if self.kind == "all-gather" else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTotals:
    """All collectives of one kind and dtype.

    Attributes:
        kind: Which collective.
        dtype: HLO's name of the dtype.
        num_sites: Places in the program.
        num_runs: Executions per step.
        operand_bytes: Bytes in, per device and step.
        moved_bytes: Bytes sent, per device and step.
    """

    kind: CollectiveKind
    dtype: str
    num_sites: int
    num_runs: int
    operand_bytes: int
    moved_bytes: int


def total_collectives(facts: Iterable[CollectiveFacts]) -> tuple[CollectiveTotals, ...]:
    """Sums collectives by kind and dtype, most bytes moved first."""
    groups: dict[tuple[CollectiveKind, str], list[CollectiveFacts]] = {}
    for fact in facts:
        groups.setdefault((fact.kind, fact.dtype), []).append(fact)
    totals = [
        CollectiveTotals(
            kind=kind,
            dtype=dtype,
            num_sites=len(group),
            num_runs=sum(fact.runs for fact in group),
            operand_bytes=sum(fact.operand_bytes * fact.runs for fact in group),
            moved_bytes=sum(fact.step_moved_bytes for fact in group),
        )
        for (kind, dtype), group in groups.items()
    ]
    return tuple(sorted(totals, key=lambda t: (-t.moved_bytes, t.kind, t.dtype)))


def find_collectives(
    facts: Iterable[CollectiveFacts],
    *,
    kind: CollectiveKind | None = None,
    dtype: str | None = None,
    min_elems: int = 0,
) -> tuple[CollectiveFacts, ...]:
    """Picks collectives by kind, dtype and the size of their largest array.

    Args:
        facts: What `read_collectives` returned.
        kind: Only this kind; None for all.
        dtype: Only this dtype, as HLO spells it; None for all.
        min_elems: Only those with a part of this many elements, or more. What an
            all-gather puts together counts as it comes out, whole.

    Returns:
        The ones that fit, in order.
    """
    return tuple(
        fact
        for fact in facts
        if kind in (None, fact.kind)
        and dtype in (None, fact.dtype)
        and fact.max_part_elems >= min_elems
    )
