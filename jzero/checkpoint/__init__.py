"""Checkpoints: the only importer of Orbax.

May import: runtime and below. Read first: `checkpointer.py`.
"""

from importlib.util import find_spec

if find_spec("orbax") is None or find_spec("orbax.checkpoint") is None:
    raise ModuleNotFoundError(
        "checkpoints are written with Orbax, which is not installed.\n"
        'Remedy: pip install "jzero[checkpoint]"',
        name="orbax.checkpoint",
    )
