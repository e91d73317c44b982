"""`python -m jzero` is the command line."""

from __future__ import annotations

import subprocess
import sys


def test_help_names_the_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jzero", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    for command in ("plan", "fit", "aot-setup"):
        assert command in done.stdout
