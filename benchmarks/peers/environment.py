"""The environment of the rivals: made once, apart from jzero's own."""

from __future__ import annotations

import subprocess
from pathlib import Path

# The CPU build where the installer knows it, for it is a tenth of the size; else
# whatever the default index has.
TORCH = ("torch==2.13.0+cpu", "torch")
PACKAGES = ("numpy", "setuptools", "deepspeed==0.19.8")


def stamp_text(python: str) -> str:
    """Returns what an environment says that it holds, once it is whole."""
    return "\n".join([python, *TORCH, *PACKAGES])


def is_whole(folder: Path, python: str) -> bool:
    """Says whether an environment was made to its end, and of these packages."""
    stamp = folder / "peers-stamp"
    return stamp.exists() and stamp.read_text() == stamp_text(python)


def ensure(folder: Path, python: str) -> Path:
    """Makes the environment unless it is there, and returns its interpreter.

    Args:
      folder: where it goes.
      python: what to make it with.

    Raises:
      subprocess.CalledProcessError: the packages cannot be had.
    """
    inside = folder / "bin" / "python"
    if is_whole(folder, python):
        return inside
    subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
    install = [str(inside), "-m", "pip", "install", "--quiet"]
    for torch in TORCH:
        if subprocess.run([*install, torch]).returncode == 0:
            break
    subprocess.run([*install, *PACKAGES], check=True)
    (folder / "peers-stamp").write_text(stamp_text(python))
    return inside


def add(inside: Path, *packages: str) -> None:
    """Installs what a benchmark wants beside the rivals.

    Args:
      inside: the interpreter that `ensure` returned.
      *packages: what to install.

    Raises:
      subprocess.CalledProcessError: the packages cannot be had.
    """
    install = [str(inside), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, *packages], check=True)
