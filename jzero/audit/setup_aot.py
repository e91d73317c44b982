"""Installs what compiling for absent GPUs needs, and nothing else.

    python -m jzero.audit.setup_aot

Lives here: the list of the four wheels, whether they are there, and the command that
installs them into the running Python. Their own dependencies (cuDNN, cuBLAS, NCCL:
gigabytes) are needed to run on a GPU and not to compile for one, which no extra of a
package can express; hence `--no-deps`. May import: `errors`. Read next: `pods.py`.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

__all__ = ["install_command", "main", "missing_wheels", "required_wheels"]


def required_wheels() -> tuple[str, ...]:
    """Returns the wheels as pip requirements: two at jaxlib's version, two of CUDA.

    The first two are the compiler and its door into JAX; the others hold the
    assembler `ptxas` and the device library that it links.
    """
    jaxlib_version = importlib.metadata.version("jaxlib")
    return (
        f"jax-cuda13-plugin=={jaxlib_version}",
        f"jax-cuda13-pjrt=={jaxlib_version}",
        "nvidia-cuda-nvcc>=13,<14",
        "nvidia-nvvm>=13,<14",
    )


def missing_wheels(search_path: Sequence[str] | None = None) -> tuple[str, ...]:
    """Returns those required wheels that are absent or of another version.

    Args:
        search_path: Folders to look into; None for those of the running Python.
    """
    installed = {
        distribution.metadata["Name"]: distribution.version
        for distribution in importlib.metadata.distributions(
            path=list(sys.path if search_path is None else search_path)
        )
    }
    return tuple(
        wheel for wheel in required_wheels() if not _is_installed(wheel, installed)
    )


def install_command(wheels: Sequence[str]) -> tuple[str, ...]:
    """Returns the command that installs the wheels into the running Python."""
    return (sys.executable, "-m", "pip", "install", "--no-deps", *wheels)


def main() -> int:
    """Installs what is missing. Returns the exit status; 0 if all was there."""
    missing = missing_wheels()
    if not missing:
        print("Compiling for GPUs that are not there: all four wheels are installed.")
        return 0
    print(f"Installing {', '.join(missing)} (about 700 MB unpacked in all).")
    return subprocess.run(install_command(missing), check=False).returncode


def _is_installed(wheel: str, installed: Mapping[str, str]) -> bool:
    name, version = re.split("==|>=", wheel, maxsplit=1)
    found = installed.get(name)
    if found is None:
        return False
    if "==" in wheel:
        return found == version
    return found.split(".")[0] == version.split(",")[0]


if __name__ == "__main__":
    sys.exit(main())
