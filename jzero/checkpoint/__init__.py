"""Checkpoints: the only importer of Orbax, TensorStore and safetensors.

May import: runtime and below. Read first: `checkpointer.py`; for what needs no device
and no model code, `consolidating.py`.
"""

from importlib.util import find_spec

if find_spec("orbax") is None or find_spec("orbax.checkpoint") is None:
    raise ModuleNotFoundError(
        "checkpoints are written with Orbax, which is not installed.\n"
        'Remedy: pip install "jzero[checkpoint]"',
        name="orbax.checkpoint",
    )

# Only now: what they import may be what is missing.
from jzero.checkpoint.consolidating import Consolidated, consolidate
from jzero.checkpoint.differing import Diff, LeafDiff, diff
from jzero.checkpoint.listing import ListedStep, list_checkpoints
from jzero.checkpoint.loading import load_consolidated
from jzero.checkpoint.verifying import CheckedStep, verify

__all__ = [
    "CheckedStep",
    "Consolidated",
    "Diff",
    "LeafDiff",
    "ListedStep",
    "consolidate",
    "diff",
    "list_checkpoints",
    "load_consolidated",
    "verify",
]
