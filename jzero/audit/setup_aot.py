"""Installs what compiling for absent GPUs and TPUs needs, and nothing else.

    python -m jzero.audit.setup_aot          # GPUs: 4 wheels, about 700 MB unpacked
    python -m jzero.audit.setup_aot --tpu    # TPUs too: libtpu, about 700 MB more

Lives here: the list of the wheels, whether they are there, and the command that
installs them into the running Python. May import: `errors`. Read next: `devices.py`.

The wheels' optional dependencies (cuDNN, cuBLAS, NCCL: gigabytes) are needed to run
on a GPU and not to compile for one. Two ways leave them out:

- `pip install "jzero[aot]"`, or `jzero[aot-tpu]`. The extra asks JAX's own extra
  `cuda13-local` for the plugin, which pins it to the version of jaxlib and takes no
  CUDA library; two small wheels that the assembler's wheel depends on come along.
- This module. It says `--no-deps`, which no extra can, so it leaves every package
  that is there as it is: pip resolves an extra together with JAX, and may upgrade
  JAX for it.
"""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

from rich.console import Console

__all__ = ["install_command", "main", "missing_wheels", "required_wheels", "setup"]

_UNPACKED_MB = {"gpu": 700, "tpu": 700}


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


def setup(quiet: bool = False, *, tpu: bool = False) -> int:
    """Installs what is missing, with one line of progress.

    Args:
        quiet: Print nothing unless it fails.
        tpu: Also for TPUs.

    Returns:
        The exit status: 0 if all is there now, otherwise pip's.
    """
    console = Console(quiet=quiet, soft_wrap=True)
    kinds: tuple[Literal["gpu", "tpu"], ...] = ("gpu", "tpu") if tpu else ("gpu",)
    chips = " and ".join(f"{kind.upper()}s" for kind in kinds)
    missing_by_kind = {kind: missing_wheels(kind=kind) for kind in kinds}
    missing = [wheel for wheels in missing_by_kind.values() for wheel in wheels]
    if not missing:
        num = sum(len(required_wheels(kind)) for kind in kinds)
        console.print(
            f"Compiling for {chips} that are not there: all {num} wheels are installed."
        )
        return 0
    size_mb = sum(_UNPACKED_MB[kind] for kind in kinds if missing_by_kind[kind])
    command = install_command(missing, quiet=True)
    with console.status(
        f"Installing {', '.join(missing)} (up to {size_mb} MB unpacked)"
    ):
        done = subprocess.run(
            command,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    if done.returncode:
        print(done.stdout.rstrip(), file=sys.stderr)
        print(f"This failed: {shlex.join(command)}", file=sys.stderr)
        return done.returncode
    console.print(
        f"Installed {', '.join(missing)}. Programs for {chips} that are not there can "
        "be compiled; nothing can run on them."
    )
    return 0


def main(arguments: Sequence[str] = ()) -> int:
    """Runs `setup` for a command line; returns the exit status.

    Args:
        arguments: `--tpu`, `--quiet`, both or neither.
    """
    unknown = sorted(set(arguments) - {"--tpu", "--quiet"})
    if unknown:
        print(f"unknown: {' '.join(unknown)}", file=sys.stderr)
        print("usage: python -m jzero.audit.setup_aot [--tpu] [--quiet]")
        return 2
    return setup("--quiet" in arguments, tpu="--tpu" in arguments)


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
