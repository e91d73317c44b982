"""Optimizers whose state is small and whose update is one pass: `jzero.optim`."""

from jzero.optim.algorithms import adam, adamw, lion, sgd
from jzero.optim.masters import MasterState, with_master_weights
from jzero.optim.mutable import apply_to_nnx
from jzero.optim.transform import FusedState, FusedTransformation

__all__ = [
    "FusedState",
    "FusedTransformation",
    "MasterState",
    "adam",
    "adamw",
    "apply_to_nnx",
    "lion",
    "sgd",
    "with_master_weights",
]
