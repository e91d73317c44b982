"""jzero: ZeRO for JAX, as a transformation of the user's own training step."""

from jzero.api import shard_train_step
from jzero.audit import pods
from jzero.config import ZeroConfig
from jzero.errors import (
    AliasError,
    BatchError,
    ConfigError,
    DonationError,
    InternalError,
    JzeroError,
    MeshError,
    ParamsError,
    PlacementError,
    StageError,
    StateError,
)
from jzero.plan.plan import Plan
from jzero.step import TrainStep

__all__ = [
    "AliasError",
    "BatchError",
    "ConfigError",
    "DonationError",
    "InternalError",
    "JzeroError",
    "MeshError",
    "ParamsError",
    "PlacementError",
    "Plan",
    "StageError",
    "StateError",
    "TrainStep",
    "ZeroConfig",
    "pods",
    "shard_train_step",
]
