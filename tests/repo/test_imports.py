"""What importing jzero costs, and what it says where an extra is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

LISTS = """
import sys, jzero
names = "orbax.checkpoint", "tensorstore", "flax", "optax", "llvmlite"
print(*sorted(name for name in names if name in sys.modules))
"""

WITHOUT_ORBAX = """
import sys

sys.modules["orbax"] = None  # as if it were not installed
import jzero
assert jzero.shard_train_step
try:
    jzero.Checkpointer
except ModuleNotFoundError as error:
    print(error)
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_libraries_that_a_step_does_without_are_not_imported() -> None:
    assert run(LISTS).split() == []


def test_a_missing_orbax_is_named_with_the_remedy() -> None:
    assert 'pip install "jzero[checkpoint]"' in run(WITHOUT_ORBAX)
