"""How long a step takes at least, by stated speeds alone: an estimate.

    transfers = transfers_of(audit.collectives)
    print(estimate_seconds("h100", chips_per_host=8, flops=4e15, transfers=transfers))

Lives here: `estimate_seconds` and its record. Nothing is measured and nothing runs:
work is divided by the speeds that the makers state (`chips.py`), without latencies,
and as if every link and unit were always busy. Real steps take longer; what compares
is one plan with another. May import: `chips`, `facts`, `errors`. Read next:
`chips.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from jzero.audit.chips import ChipFacts, chip_facts
from jzero.audit.facts import CollectiveFacts
from jzero.errors import ConfigError, format_problem

__all__ = ["RooflineEstimate", "Transfer", "estimate_seconds", "transfers_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What one chip sends within a group of chips.

    Attributes:
        moved_bytes: Bytes that one chip sends per step.
        group_size: Chips that exchange with one another.
        spans_hosts: Whether the group's chips are in several hosts. None if unknown:
            then it is taken to fit into a host if it is no larger than one, which is
            wrong for groups that take one chip of each host.
    """

    moved_bytes: float
    group_size: int
    spans_hosts: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineEstimate:
    """An estimate of one step, not a measurement, from stated speeds.

    Attributes:
        chip: Whose speeds they are.
        flops_seconds: Matrix products at the bf16 peak.
        memory_seconds: Bytes to and from the device memory at its bandwidth; None
            if the bytes are unknown.
        intra_seconds: Bytes sent within hosts, or within a TPU slice.
        inter_seconds: Bytes of groups over several hosts, at the slower of both
            bandwidths.
    """

    chip: str
    flops_seconds: float
    memory_seconds: float | None
    intra_seconds: float
    inter_seconds: float

    @property
    def compute_seconds(self) -> float:
        """The longer of arithmetic and memory traffic, which overlap in a kernel."""
        return max(self.flops_seconds, self.memory_seconds or 0.0)

    @property
    def serial_seconds(self) -> float:
        """The total if nothing overlaps: computation, then every transfer."""
        return self.compute_seconds + self.intra_seconds + self.inter_seconds

    @property
    def overlapped_seconds(self) -> float:
        """The total if everything overlaps: the longest of the three alone."""
        return max(self.compute_seconds, self.intra_seconds, self.inter_seconds)

    def __str__(self) -> str:
        limit = "arithmetic"
        if self.memory_seconds is None:
            limit += ", memory traffic unknown"
        elif self.memory_seconds > self.flops_seconds:
            limit = "memory traffic"
        return "\n".join(
            [
                f"roofline estimate from the stated speeds of {self.chip}; nothing ran",
                f"  computation          {_time(self.compute_seconds):>10}   {limit}",
                f"  sent within hosts    {_time(self.intra_seconds):>10}",
                f"  sent between hosts   {_time(self.inter_seconds):>10}",
                f"  step, no overlap     {_time(self.serial_seconds):>10}",
                f"  step, full overlap   {_time(self.overlapped_seconds):>10}",
            ]
        )


def transfers_of(collectives: Iterable[CollectiveFacts]) -> tuple[Transfer, ...]:
    """Returns what the collectives of a compiled program send per step.

    Args:
        collectives: As `audit_compiled(compiled).collectives` has them.

    Returns:
        One transfer each, loops times their trip counts. A permutation counts as one
        group of all its pairs, which it usually joins in a ring.
    """
    return tuple(
        Transfer(
            moved_bytes=fact.step_moved_bytes,
            group_size=max(fact.group_size, fact.num_groups)
            if fact.kind == "collective-permute"
            else fact.group_size,
        )
        for fact in collectives
    )


def estimate_seconds(
    chip: str | ChipFacts,
    *,
    chips_per_host: int,
    flops: float,
    transfers: Iterable[Transfer] = (),
    memory_bytes_accessed: float | None = None,
) -> RooflineEstimate:
    """Estimates the seconds of one step from stated speeds. Nothing runs.

    Args:
        chip: The chip, or its name.
        chips_per_host: Chips that share a host. Not used for TPUs: within a slice,
            which is what a pod's name means there, all are on one interconnect.
        flops: Floating-point operations of one chip per step.
        transfers: What one chip sends per step.
        memory_bytes_accessed: Bytes that one chip reads and writes per step, or None.

    Returns:
        The estimate. A transfer whose group fits in a host goes at the bandwidth
        inside of a host; any other at the slower of that and the one between hosts.

    Raises:
        ConfigError: A quantity is negative or not finite, or a count is below 1.
        ChipError: No such chip is known.

    Source:
        Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.

    Example:
        >>> sent = Transfer(moved_bytes=50e9, group_size=64)
        >>> step = estimate_seconds(
        ...     "h100", chips_per_host=8, flops=989e12, transfers=[sent]
        ... )
        >>> step.compute_seconds, step.inter_seconds, step.serial_seconds
        (1.0, 1.0, 2.0)
    """
    facts = chip_facts(chip) if isinstance(chip, str) else chip
    listed = tuple(transfers)
    _check(chips_per_host, flops, memory_bytes_accessed, listed)
    crossing = [_crosses(facts, chips_per_host, transfer) for transfer in listed]
    sent = tuple(zip(listed, crossing, strict=True))
    intra_bytes = sum(transfer.moved_bytes for transfer, far in sent if not far)
    inter_bytes = sum(transfer.moved_bytes for transfer, far in sent if far)
    slower_bytes_per_s = min(facts.intra_bytes_per_s, facts.inter_bytes_per_s)
    return RooflineEstimate(
        chip=facts.description,
        flops_seconds=flops / facts.bf16_flops_per_s,
        memory_seconds=None
        if memory_bytes_accessed is None
        else memory_bytes_accessed / facts.memory_bytes_per_s,
        intra_seconds=intra_bytes / facts.intra_bytes_per_s,
        inter_seconds=inter_bytes / slower_bytes_per_s,
    )


def _crosses(facts: ChipFacts, chips_per_host: int, transfer: Transfer) -> bool:
    if facts.kind == "tpu":
        return False
    if transfer.spans_hosts is not None:
        return transfer.spans_hosts
    return transfer.group_size > chips_per_host


def _check(
    chips_per_host: int,
    flops: float,
    memory_bytes_accessed: float | None,
    transfers: tuple[Transfer, ...],
) -> None:
    quantities = {"flops": flops, "memory_bytes_accessed": memory_bytes_accessed or 0}
    counts: dict[str, float] = {"chips_per_host": chips_per_host}
    for index, transfer in enumerate(transfers):
        quantities[f"transfers[{index}].moved_bytes"] = transfer.moved_bytes
        counts[f"transfers[{index}].group_size"] = transfer.group_size
    rows = [
        (name, f"{value}, must be finite and at least 0")
        for name, value in quantities.items()
        if not (math.isfinite(value) and value >= 0)
    ]
    rows += [
        (name, f"{value}, must be at least 1")
        for name, value in counts.items()
        if value < 1
    ]
    if rows:
        raise ConfigError(
            format_problem("No time follows from these:", rows, "give per-step sums.")
        )


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
