"""What is stated of the chips that pods are made of: memory, speeds, and by whom.

    chip = chip_facts("h100")
    chip.memory_bytes, chip.bf16_flops_per_s

Lives here: `ChipFacts` and its reader. The numbers, each with its source, are in
`targets/chips.toml`; nobody has measured them here. May import: `errors`. Read next:
`pods.py`, which names pods by chip, and `speeds.py`, which takes the speeds to a
schedule.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

from jzero.errors import JzeroError, format_problem

__all__ = ["ChipError", "ChipFacts", "ChipSource", "chip_facts", "known_chips"]

_TABLE = "chips.toml"


class ChipError(JzeroError, ValueError):
    """No such chip is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipSource:
    """Where numbers of a chip are stated.

    Attributes:
        of: The fields of `ChipFacts` that it states.
        name: Publisher and document, and what it states where the field is a part.
        url: Its address.
    """

    of: tuple[str, ...]
    name: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipFacts:
    """One kind of chip, by what its maker states.

    Every bandwidth is that of one chip and one direction.

    Attributes:
        chip: Its name in pods, e.g. "h100".
        kind: Which compiler builds for it.
        description: Its name in words.
        memory_bytes: Device memory as the data sheet rounds it, decimal: no more than
            the device reports.
        bf16_flops_per_s: Peak of dense bf16 matrix products with float32 sums.
        memory_bytes_per_s: Bandwidth of the device memory.
        intra_bytes_per_s: To the other chips of a GPU host over NVLink, or of a TPU
            slice over all links of the interconnect together.
        inter_bytes_per_s: To other GPU hosts over InfiniBand, or to other TPU slices.
        pcie_bytes_per_s: To the memory of its host.
        max_chips: Chips of the largest pod.
        max_chips_per_host: Chips of one host: the most for GPUs, always for TPUs.
        slice_shapes: Shapes of TPU slices; empty for GPUs.
        slice_multiple: TPU slices whose every side is a multiple of this exist too;
            0 if no others do.
        sources: Who states it.
    """

    chip: str
    kind: Literal["gpu", "tpu"]
    description: str
    memory_bytes: int
    bf16_flops_per_s: float
    memory_bytes_per_s: float
    intra_bytes_per_s: float
    inter_bytes_per_s: float
    pcie_bytes_per_s: float
    max_chips: int
    max_chips_per_host: int
    slice_shapes: tuple[tuple[int, ...], ...] = ()
    slice_multiple: int = 0
    sources: tuple[ChipSource, ...]

    @property
    def num_dims(self) -> int:
        """Numbers in the name of a pod: hosts and chips, or sides of a slice."""
        return len(self.slice_shapes[0]) if self.slice_shapes else 2

    @property
    def pattern(self) -> str:
        """How pods of it are written, e.g. "h100:HxG"."""
        letters = "HG" if self.kind == "gpu" else "ABC"[: self.num_dims]
        return f"{self.chip}:{'x'.join(letters)}"


def known_chips() -> tuple[str, ...]:
    """Returns the names of all chips, GPUs first.

    Example:
        >>> known_chips()
        ('a100-40', 'a100-80', 'h100', 'h200', 'b200', 'v5e', 'v5p', 'v6e')
    """
    return tuple(_table())


def chip_facts(chip: str) -> ChipFacts:
    """Returns what is stated of a chip.

    Args:
        chip: Its name, e.g. "a100-80".

    Raises:
        ChipError: No such chip is known; the text lists those that are.

    Example:
        >>> chip_facts("h100").bf16_flops_per_s / 1e12
        989.0
    """
    table = _table()
    if chip not in table:
        raise ChipError(
            format_problem(
                f"Unknown chip {chip!r}. Known are:",
                [(facts.chip, facts.description) for facts in table.values()],
                "name one of these.",
            )
        )
    return table[chip]


@cache
def _table() -> MappingProxyType[str, ChipFacts]:
    text = (resources.files("jzero.audit") / "targets" / _TABLE).read_text()
    return MappingProxyType(
        {chip: _read(chip, entry) for chip, entry in tomllib.loads(text).items()}
    )


def _read(chip: str, entry: dict[str, Any]) -> ChipFacts:
    sources = tuple(
        ChipSource(of=tuple(item["of"]), name=item["name"], url=item["url"])
        for item in entry.pop("sources")
    )
    shapes = tuple(tuple(shape) for shape in entry.pop("slice_shapes", ()))
    return ChipFacts(chip=chip, sources=sources, slice_shapes=shapes, **entry)
