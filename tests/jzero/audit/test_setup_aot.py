"""Installing what compiling for absent devices needs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from jzero.audit.setup_aot import main, setup
from jzero.audit.wheels import missing_wheels

ROOT = Path(__file__).resolve().parents[3]


def test_unknown_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gpu"]) == 2
    assert "unknown: --gpu" in capsys.readouterr().err


def test_pips_failure_is_shown_with_the_command(tmp_path: Path) -> None:
    # A Python without pip, and the installed packages but for it and the plugin.
    venv.create(tmp_path / "bare", with_pip=False)
    shown = tmp_path / "shown"
    shown.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("pip", "jax_cuda", "jax_plugins")):
            (shown / entry.name).symlink_to(entry)
    done = subprocess.run(
        [
            tmp_path / "bare" / "bin" / "python",
            "-m",
            "jzero.audit.setup_aot",
            "--quiet",
        ],
        env={"PYTHONPATH": f"{shown}{os.pathsep}{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert "No module named pip" in done.stderr
    assert "-m pip install --no-deps -q jax-cuda13-plugin==" in done.stderr


@pytest.mark.skipif(
    bool(missing_wheels()),
    reason="would install 700 MB: python -m jzero.audit.setup_aot does so",
)
def test_runs_as_a_program_without_a_warning() -> None:
    command = [sys.executable, "-W", "error", "-m", "jzero.audit.setup_aot"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "all 4 wheels are installed" in done.stdout


@pytest.mark.skipif(
    bool(missing_wheels()),
    reason="would install 700 MB: python -m jzero.audit.setup_aot does so",
)
def test_does_nothing_where_all_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    assert "all 4 wheels are installed" in capsys.readouterr().out
    assert setup(True) == 0
    assert capsys.readouterr().out == ""
