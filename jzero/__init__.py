"""jzero: ZeRO for JAX, as a transformation of the user's own training step."""

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
    ConfigError,
    DonationError,
    FindingError,
    FindingWarning,
    InternalError,
    JzeroError,
    LossScaleError,
    MeshError,
    ParamsError,
    PlacementError,
    StageError,
    StateError,
)
from jzero.plan.plan import Plan
from jzero.step import TrainStep
from jzero.train_state import TrainState

__all__ = [
    "AliasError",
    "BatchError",
    "CompiledStep",
    "ConfigError",
    "DonationError",
    "Finding",
    "FindingError",
    "FindingWarning",
    "InternalError",
    "JzeroError",
    "LossScaleError",
    "MeshError",
    "ParamsError",
    "PlacementError",
    "Plan",
    "StageError",
    "StateError",
    "StepReport",
    "TrainState",
    "TrainStep",
    "ZeroConfig",
    "optim",
    "pods",
    "precision",
    "shard_train_step",
]
