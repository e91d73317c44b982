"""Devices that are not there: the compilers for them, as JAX offers them.

Lives here: GPUs and TPUs without a machine, and what must be installed and set for
them. Programs are compiled for these devices by the real compiler, and nothing can
run on them. May import: `chips`, `wheels`, `errors`. Read next: `pods.py`.

What has to be set when, for GPUs: JAX looks for the CUDA plugin once, at the first
use of any device, and refuses it on a machine without a driver, unless the
environment has `JAX_PLATFORMS=cpu` or `JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1` by then.
Neither need be there when JAX is imported. `gpu_devices` sets the second for the time
of its own call, so it works in a fresh process; where JAX has been used before, set
either one outside. No XLA flag is needed: what would tune by running
(`COMPILER_OPTIONS`) can be switched off per compile, and the compiler skips it
without a device anyway.

For TPUs: libtpu asks the machine which TPUs it has, complains on one that has none,
and wants to be loaded by one process at a time. `tpu_devices` answers for it, and
lifts that limit, where JAX has found no TPU.

Memory kinds: GPUs that are not there report no memories, so `pinned_host` on an
input is dropped without a word. Do not trust host bytes of such a compile. TPUs that
are not there do report theirs.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

from jax.experimental import topologies

from jzero.audit.chips import chip_facts, known_chips
from jzero.audit.wheels import install_command, missing_wheels
from jzero.errors import JzeroError, format_problem

__all__ = [
    "COMPILER_OPTIONS",
    "PodError",
    "PodNameError",
    "gpu_devices",
    "tpu_devices",
]

COMPILER_OPTIONS = MappingProxyType({"xla_gpu_autotune_level": 0})
"""For GPUs: `lowered.compile(compiler_options=dict(COMPILER_OPTIONS))`."""

_SKIP_CHECK = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
# JAX sets this when it finds no TPU in the machine.
_NO_TPU = "TPU_SKIP_MDS_QUERY"
_TPU_ANSWERS = MappingProxyType(
    {
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        # Only the TPUs of a machine make one process at a time a sensible limit.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
)


class PodError(JzeroError, RuntimeError):
    """A pod is unknown, or what compiling for it needs is not installed."""


class PodNameError(PodError, ValueError):
    """A pod is misspelled, or there is no such pod."""


def gpu_devices(topology: str, *, chip: str = "h100") -> tuple[Any, ...]:
    """Returns device-less GPUs, to compile for and not to run on.

    Args:
        topology: `slices x hosts x GPUs per host`, e.g. "1x8x8" for 64 GPUs.
        chip: The kind of GPU.

    Returns:
        The devices, those of one host next to one another.

    Raises:
        PodNameError: The text or the chip is unknown.
        PodError: A wheel is missing (the message has the command that installs it),
            or JAX refused the plugin earlier in this process.
    """
    _check_topology(topology, (3,), "slices x hosts x GPUs per host", "1x8x8")
    _check_chip(chip, "gpu")
    _check_wheels("gpu")
    target = resources.files("jzero.audit") / "targets" / f"{chip}.textproto"
    with _environment({_SKIP_CHECK: "1"}):
        try:
            described = topologies.get_topology_desc(
                chip, "cuda", target_config=target.read_text(), topology=topology
            )
        except NotImplementedError as error:
            raise PodError(
                format_problem(
                    "JAX has refused its CUDA plugin earlier in this process, since "
                    "there is no driver.",
                    (),
                    f"set JAX_PLATFORMS=cpu or {_SKIP_CHECK}=1 in the environment, "
                    "or make the pod before anything uses a JAX device.",
                )
            ) from error
    return tuple(described.devices)


def tpu_devices(topology: str, *, chip: str = "v5e") -> tuple[Any, ...]:
    """Returns device-less TPUs of one slice, to compile for and not to run on.

    Args:
        topology: The sides of the slice, e.g. "4x4", or "2x2x2" for a v5p.
        chip: The kind of TPU.

    Returns:
        The devices, in the compiler's order; each knows its `coords`.

    Raises:
        PodNameError: The text or the chip is unknown. Whether there is such a slice
            is for `pods.parse_pod` to say: the compiler aborts the process for some
            that there are not.
        PodError: libtpu is missing (the message has the command that installs it),
            or it refused.
    """
    _check_topology(topology, (2, 3), "sides of a slice", "4x4")
    _check_chip(chip, "tpu")
    _check_wheels("tpu")
    with _environment(_TPU_ANSWERS if os.environ.get(_NO_TPU) == "1" else {}):
        try:
            described = topologies.get_topology_desc(f"{chip}:{topology}", "tpu")
        except RuntimeError as error:
            raise PodError(
                format_problem(
                    f"libtpu does not describe {chip}:{topology}: {error}",
                    (),
                    "if that is about the shape, take one that jzero.pods.parse_pod "
                    "accepts; if about a lock, end the other process that uses TPUs.",
                )
            ) from error
    return tuple(described.devices)


def _check_topology(
    topology: str, num_dims: tuple[int, ...], meaning: str, example: str
) -> None:
    sides = topology.split("x")
    if len(sides) not in num_dims or not all(
        side.isascii() and side.isdecimal() and not side.startswith("0")
        for side in sides
    ):
        raise PodNameError(
            format_problem(
                f"Unknown topology {topology!r}.",
                (),
                f'write {meaning}, for example "{example}".',
            )
        )


def _check_chip(chip: str, kind: Literal["gpu", "tpu"]) -> None:
    known = [name for name in known_chips() if chip_facts(name).kind == kind]
    if chip not in known:
        raise PodNameError(
            format_problem(
                f"Unknown chip {chip!r} for a {kind.upper()}.",
                (),
                f"known are {', '.join(known)}.",
            )
        )


def _check_wheels(kind: Literal["gpu", "tpu"]) -> None:
    missing = missing_wheels(kind=kind)
    if missing:
        flag = " --tpu" if kind == "tpu" else ""
        raise PodError(
            format_problem(
                f"Compiling for {kind.upper()}s that are not there needs wheels that "
                "are not installed:",
                missing,
                f"{shlex.join(install_command(missing))}   (or: jzero aot-setup{flag})",
            )
        )


@contextmanager
def _environment(defaults: Mapping[str, str]) -> Iterator[None]:
    """Sets variables that have no value, and takes them back."""
    added = [key for key in defaults if not os.environ.get(key)]
    before = {key: os.environ.get(key) for key in added}
    os.environ.update({key: defaults[key] for key in added})
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
