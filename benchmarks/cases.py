"""The cases of the figures table, and what each must reach.

Lives here: `Case` and `CASES`. Read next: `figures.py`, which compiles them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CASES", "MAX_LAYER_GROWTH_MB", "Case", "Limits"]

MAX_LAYER_GROWTH_MB = 10.0
"""What an unrolled layer of width 1024 may add to the peak at stage 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one stage of a case must not exceed. None is no limit.

    Attributes:
        peak_mb: Device peak, in 10^6 bytes.
        units: Bytes moved, in 16-bit all-reduces of all gradients.
        seconds: Lowering and compiling together, on two cores.
    """

    peak_mb: float | None = None
    units: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, a pod and a batch.

    Attributes:
        pod: The pod's name, e.g. "h100:8x8".
        num_layers: Blocks.
        width: Width of the model; heads are of 64.
        is_scanned: The blocks are stacked and scanned.
        sequences_per_device: In one step.
        num_tokens: Of each sequence.
        num_micro_batches: Into which the step cuts its batch.
        stages: The stages to compile, with their limits.
    """

    pod: str
    num_layers: int
    width: int
    is_scanned: bool = False
    sequences_per_device: int = 2
    num_tokens: int = 1024
    num_micro_batches: int = 1
    stages: tuple[tuple[int, Limits], ...] = ()


_ALL_STAGES = (
    (0, Limits(units=1.03)),
    (1, Limits(units=1.03)),
    (2, Limits(units=1.03)),
    (3, Limits(units=1.52)),
)

CASES = {
    "n8": Case(pod="h100:1x8", num_layers=4, width=1024, stages=_ALL_STAGES),
    "n64": Case(pod="h100:8x8", num_layers=4, width=1024, stages=_ALL_STAGES),
    "scan": Case(
        pod="h100:8x8",
        num_layers=16,
        width=2048,
        is_scanned=True,
        stages=((3, Limits(peak_mb=1260, units=1.52)),),
    ),
    "unroll12": Case(
        pod="h100:8x8",
        num_layers=12,
        width=1024,
        stages=(
            (1, Limits(units=1.03)),
            (2, Limits(units=1.03)),
            (3, Limits(peak_mb=560, units=1.52)),
        ),
    ),
    "unroll24": Case(
        pod="h100:8x8",
        num_layers=24,
        width=1024,
        stages=((3, Limits(peak_mb=560 + 12 * MAX_LAYER_GROWTH_MB, units=1.52)),),
    ),
    "accumulate": Case(
        pod="h100:1x8",
        num_layers=8,
        width=1024,
        is_scanned=True,
        sequences_per_device=8,
        num_micro_batches=8,
        # A reduction per micro-batch; weights are gathered once at stage 2.
        stages=((2, Limits(units=8 * 0.5 + 0.52)), (3, Limits(units=8 * 1.52))),
    ),
    "trillion": Case(
        pod="h100:128x8",
        num_layers=128,
        width=25_600,
        is_scanned=True,
        sequences_per_device=1,
        stages=((3, Limits(peak_mb=45_000, seconds=90)),),
    ),
}
