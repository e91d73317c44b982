"""jzero: ZeRO for JAX, as a transformation of the user's own training step."""

import importlib
from typing import TYPE_CHECKING, Any

from jzero import optim, precision
from jzero.api import shard_train_step
from jzero.audit import pods
from jzero.audit.compiled_step import CompiledStep
from jzero.audit.findings.finding import Finding
from jzero.audit.step_report import StepReport
from jzero.config import ZeroConfig
from jzero.errors import (
    AliasError,
    BatchError,
    CheckpointError,
    CheckpointWarning,
    ConfigError,
    DonationError,
    FindingError,
    FindingWarning,
    HostMemoryError,
    InternalError,
    JzeroError,
    LossScaleError,
    MeshError,
    MismatchError,
    ParamsError,
    PlacementError,
    StageError,
    StateError,
)
from jzero.fit.ratio import fit_offload
from jzero.offload import Offload
from jzero.plan.plan import Plan
from jzero.step import TrainStep
from jzero.train_state import TrainState

if TYPE_CHECKING:
    from jzero import checkpoint
    from jzero.checkpoint.checkpointer import Checkpointer

__all__ = [
    "AliasError",
    "BatchError",
    "CheckpointError",
    "CheckpointWarning",
    "Checkpointer",
    "CompiledStep",
    "ConfigError",
    "DonationError",
    "Finding",
    "FindingError",
    "FindingWarning",
    "HostMemoryError",
    "InternalError",
    "JzeroError",
    "LossScaleError",
    "MeshError",
    "MismatchError",
    "Offload",
    "ParamsError",
    "PlacementError",
    "Plan",
    "StageError",
    "StateError",
    "StepReport",
    "TrainState",
    "TrainStep",
    "ZeroConfig",
    "checkpoint",
    "fit_offload",
    "optim",
    "pods",
    "precision",
    "shard_train_step",
]


def __getattr__(name: str) -> Any:
    # Orbax is an extra, and importing it takes longer than importing all the rest.
    if name == "checkpoint":
        return importlib.import_module("jzero.checkpoint")
    if name == "Checkpointer":
        return importlib.import_module("jzero.checkpoint.checkpointer").Checkpointer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
