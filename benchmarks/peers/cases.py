"""What is compared: the frameworks, their stages, and the one model that all train.

Imports nothing but the standard library, since both environments load it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

DTYPES = ("float32", "bfloat16")

# Stage 0 is the plain data parallelism of each framework: for torch it is DDP.
# FSDP2 has no stages 1 and 2. Told not to free weights after the forward pass, it
# gathers them once per step, as stage 2 of jzero does; by default it is a stage 3.
STAGES: dict[str, tuple[int, ...]] = {
    "deepspeed": (0, 1, 2, 3),
    "fsdp2": (0, 2, 3),
    "jzero": (0, 1, 2, 3),
}

LABELS: dict[tuple[str, int], str] = {
    ("fsdp2", 0): "torch DDP",
    ("fsdp2", 2): "FSDP2, weights kept",
    ("fsdp2", 3): "FSDP2",
}
NAMES = {"deepspeed": "DeepSpeed stage {}", "jzero": "jzero stage {}"}

LEARNING_RATE = 3e-4
WEIGHT_DECAY = 0.1
MAX_GRAD_NORM = 1.0

# The same limits for all that have them; those of jzero are its defaults.
WINDOW_BYTES = 16 * 2**20
PREFETCH_BYTES = 32 * 2**20
PERSISTENCE_ELEMS = 2**14


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The shape of the model and of a process's part of the batch.

    Attributes:
        vocab: Token numbers are below it.
        width: Of the residual stream; the MLP is four times as wide.
        num_layers: Blocks, one after the other.
        num_heads: Of each attention.
        num_tokens: In one sequence.
        rows: Sequences per process and step.
    """

    vocab: int = 8192
    width: int = 512
    num_layers: int = 8
    num_heads: int = 8
    num_tokens: int = 256
    rows: int = 2


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Case:
    """One job: a framework at a stage, in one dtype.

    Attributes:
        dtype: What the model computes in; masters are float32 in any case.
        framework: A key of `STAGES`.
        stage: One of its stages.
    """

    dtype: str
    framework: str
    stage: int

    @property
    def label(self) -> str:
        """How the tables name it, without the dtype."""
        known = LABELS.get((self.framework, self.stage))
        return known or NAMES[self.framework].format(self.stage)

    @property
    def baseline(self) -> Case:
        """The plain data parallelism that it is held against."""
        return Case(dtype=self.dtype, framework=self.framework, stage=0)


def cases(frameworks: Iterable[str], dtypes: Iterable[str]) -> list[Case]:
    """Returns every case, in the order in which a round runs them.

    Stages come first, frameworks last, so that rivals run close to each other.
    """
    frameworks = list(frameworks)
    return [
        Case(dtype=dtype, framework=framework, stage=stage)
        for dtype in dtypes
        for stage in range(4)
        for framework in frameworks
        if stage in STAGES[framework]
    ]
