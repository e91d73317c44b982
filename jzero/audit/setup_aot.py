"""Installs what compiling for absent GPUs and TPUs needs, and nothing else.

    python -m jzero.audit.setup_aot          # GPUs: 4 wheels, about 700 MB unpacked
    python -m jzero.audit.setup_aot --tpu    # TPUs too: libtpu, about 700 MB more

Lives here: `setup`, which runs pip, and the command line. No module of jzero imports
it, so that it can run as a program. May import: `wheels`. Read next: `wheels.py`.

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

import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Literal

from rich.console import Console

from jzero.audit.wheels import install_command, missing_wheels, required_wheels

__all__ = ["main", "missing_wheels", "setup"]

_UNPACKED_MB = {"gpu": 700, "tpu": 700}


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
