"""The one table that turns a stage number into placements.

Lives here: what each ZeRO stage shards at rest and how it communicates. No other
file reads the number. May import: `errors`, `config`. Read next: `plan.py`, which
applies the placement to the leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from jzero.config import ZeroConfig
from jzero.errors import ConfigError, StageError, format_problem

__all__ = ["Gather", "Reduce", "StagePlacement", "check_stage", "placement_for"]

Gather = Literal["none", "once", "at_use"]
Reduce = Literal["all_reduce", "at_birth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlacement:
    """What one stage shards at rest and how it communicates in the step.

    Attributes:
        params: Whether parameters are sharded at rest.
        optimizer: Whether optimizer state is sharded at rest.
        gather: When parameters become whole: never (they are), once per step, or
            at each use.
        reduce: How gradients are summed over the devices: all-reduced whole, or
            constrained to their shard where they are produced.
        window: Whether barriers bound the full gradients alive at once.
    """

    params: bool
    optimizer: bool
    gather: Gather
    reduce: Reduce
    window: bool

    @property
    def is_sharded(self) -> bool:
        """Whether any state is sharded at rest."""
        return self.params or self.optimizer


_PLACEMENTS: tuple[StagePlacement, ...] = (
    StagePlacement(
        params=False, optimizer=False, gather="none", reduce="all_reduce", window=False
    ),
    StagePlacement(
        params=True, optimizer=True, gather="once", reduce="at_birth", window=False
    ),
    StagePlacement(
        params=True, optimizer=True, gather="once", reduce="at_birth", window=True
    ),
    StagePlacement(
        params=True, optimizer=True, gather="at_use", reduce="at_birth", window=True
    ),
)

_MEANINGS: tuple[str, ...] = (
    "everything replicated, gradients all-reduced",
    "state sharded, parameters gathered once per step",
    "as 1, and gradients reduced as they are produced",
    "as 2, and parameters gathered at each use and dropped",
)


def placement_for(stage: object, *, replicate_params: bool = False) -> StagePlacement:
    """Returns the placement of a stage.

    Args:
        stage: 0, 1, 2 or 3, as an `int`.
        replicate_params: Keep whole parameters at rest (stages 1 and 2).

    Raises:
        StageError: `stage` is anything else.
        ConfigError: `replicate_params` at a stage that gathers at each use.

    Source: ZeRO, arXiv 1910.02054, section 5.

    Example:
        >>> placement_for(3).gather
        'at_use'
    """
    if type(stage) is not int or not 0 <= stage < len(_PLACEMENTS):
        raise StageError(
            format_problem(
                f"There is no stage {stage!r}. The stages are:",
                [(str(number), text) for number, text in enumerate(_MEANINGS)],
                "pass one of these numbers as an int, e.g. stage=3.",
            )
        )
    placement = _PLACEMENTS[stage]
    if not replicate_params:
        return placement
    if placement.gather == "at_use":
        raise ConfigError(
            format_problem(
                f"replicate_params=True contradicts stage {stage}, whose point is "
                "that no device keeps whole parameters.",
                (),
                "drop replicate_params, or use stage 1 or 2.",
            )
        )
    return replace(placement, params=False, gather="none")


def check_stage(config: ZeroConfig, stage: object) -> StagePlacement:
    """Returns the placement of a stage under a config, or raises `ConfigError`."""
    return placement_for(stage, replicate_params=config.replicate_params)
