"""Which wheels compiling for absent GPUs and TPUs needs, and which are missing.

Lives here: their list, whether they are there, and the command that installs them
into the running Python. May import: the standard library alone. Read next:
`setup_aot.py`, which runs that command and says why it is this one.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

__all__ = ["install_command", "missing_wheels", "required_wheels"]


def required_wheels(kind: Literal["gpu", "tpu"] = "gpu") -> tuple[str, ...]:
    """Returns the wheels as pip requirements.

    Args:
        kind: What to compile for. For GPUs the compiler and its door into JAX, both
            at jaxlib's version, the assembler `ptxas`, and the device library that
            it links. For TPUs libtpu, at the version that the installed JAX names.
    """
    if kind == "tpu":
        return (_libtpu_requirement(),)
    jaxlib_version = importlib.metadata.version("jaxlib")
    return (
        f"jax-cuda13-plugin=={jaxlib_version}",
        f"jax-cuda13-pjrt=={jaxlib_version}",
        "nvidia-cuda-nvcc>=13,<14",
        "nvidia-nvvm>=13,<14",
    )


def missing_wheels(
    search_path: Sequence[str] | None = None,
    *,
    kind: Literal["gpu", "tpu"] = "gpu",
) -> tuple[str, ...]:
    """Returns those required wheels that are absent or of another version.

    Args:
        search_path: Folders to look into; None for those of the running Python.
        kind: As for `required_wheels`.
    """
    installed = {
        distribution.metadata["Name"]: distribution.version
        for distribution in importlib.metadata.distributions(
            path=list(sys.path if search_path is None else search_path)
        )
    }
    return tuple(
        wheel for wheel in required_wheels(kind) if not _is_installed(wheel, installed)
    )


def install_command(wheels: Sequence[str], *, quiet: bool = False) -> tuple[str, ...]:
    """Returns the command that installs the wheels into the running Python.

    Args:
        wheels: Pip requirements.
        quiet: Say nothing but errors.
    """
    options = ("--no-deps", "-q") if quiet else ("--no-deps",)
    return (sys.executable, "-m", "pip", "install", *options, *wheels)


def _libtpu_requirement() -> str:
    """What the installed JAX wants for its extra `tpu`."""
    for requirement in importlib.metadata.requires("jax") or ():
        match = re.match(r"libtpu\s*==\s*[\d.]+\*?", requirement)
        if match is not None:
            return match[0].replace(" ", "")
    return "libtpu>=0"


def _is_installed(wheel: str, installed: Mapping[str, str]) -> bool:
    name, version = re.split("==|>=", wheel, maxsplit=1)
    found = installed.get(name)
    if found is None:
        return False
    if version.endswith(".*"):
        return f"{found}.".startswith(version.removesuffix("*"))
    if "==" in wheel:
        return found == version
    return version == "0" or found.split(".")[0] == version.split(",")[0]
