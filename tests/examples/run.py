"""Runs an example as a user does: a program of its own, from the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """What a user's shell has, without the virtual devices of the tests."""
    return {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}


def run_example(
    name: str,
    *arguments: str,
    timeout_seconds: int = 400,
    without: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs an example; importing the package `without` fails in it."""
    start = ["-m", f"examples.{name}"]
    if without is not None:
        code = (
            f"import runpy, sys; sys.modules[{without!r}] = None; "
            f"runpy.run_module('examples.{name}', run_name='__main__')"
        )
        start = ["-c", code]
    return subprocess.run(
        [sys.executable, *start, *arguments],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
    )
