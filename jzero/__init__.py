"""jzero: ZeRO for JAX, as a transformation of the user's own training step."""

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
    HostMemoryError,
    InternalError,
    JzeroError,
    MeshError,
    ParamsError,
    PlacementError,
    StageError,
    StateError,
)
from jzero.fit.ratio import fit_offload
from jzero.offload import Offload
from jzero.plan.plan import Plan
from jzero.step import TrainStep

__all__ = [
    "AliasError",
    "BatchError",
    "CompiledStep",
    "ConfigError",
    "DonationError",
    "Finding",
    "FindingError",
    "FindingWarning",
    "HostMemoryError",
    "InternalError",
    "JzeroError",
    "MeshError",
    "Offload",
    "ParamsError",
    "PlacementError",
    "Plan",
    "StageError",
    "StateError",
    "StepReport",
    "TrainStep",
    "ZeroConfig",
    "fit_offload",
    "pods",
    "shard_train_step",
]
