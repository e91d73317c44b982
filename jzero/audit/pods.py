"""Devices that are not there, to compile for.

    mesh = pod_mesh("h100:8x8")                  # 8 hosts of 8 GPUs, one axis "data"
    step = jzero.shard_train_step(train_step, stage=3, mesh=mesh)
    compiled = step.lower(state_shapes, batch_shapes).compile()
    print(audit_compiled(compiled).render())     # nothing has run

Lives here: names of pods, and meshes of device-less GPUs whose programs the real XLA
compiler builds. May import: `errors`, `setup_aot`. Read next: `report.py`.

What has to be set when: JAX looks for the CUDA plugin once, at the first use of any
device, and refuses it on a machine without a driver, unless the environment has
`JAX_PLATFORMS=cpu` or `JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1` by then. Neither need be
there when JAX is imported. `gpu_devices` sets the second for the time of its own
call, so it works in a fresh process; where JAX has been used before, set either one
outside. No XLA flag is needed: what would tune by running (`COMPILER_OPTIONS`) can
be switched off per compile, and the compiler skips it without a device anyway.

Memory kinds: GPUs that are not there report no memories, so `pinned_host` on an
input is dropped without a word. Do not trust host bytes of such a compile.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from jzero.audit.setup_aot import install_command, missing_wheels
from jzero.errors import JzeroError, format_problem

__all__ = [
    "COMPILER_OPTIONS",
    "Pod",
    "PodError",
    "gpu_devices",
    "parse_pod",
    "pod_mesh",
]

COMPILER_OPTIONS = MappingProxyType({"xla_gpu_autotune_level": 0})
"""Options for `lowered.compile(compiler_options=dict(COMPILER_OPTIONS))`."""

_POD = re.compile(r"(?P<chip>[a-z0-9\-]+):(?P<hosts>[1-9]\d*)x(?P<chips>[1-9]\d*)")
_TOPOLOGY = re.compile(r"[1-9]\d*x[1-9]\d*x[1-9]\d*")
_SKIP_CHECK = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
_CHIPS = ("h100",)


class PodError(JzeroError, RuntimeError):
    """A pod is unknown, or what compiling for it needs is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod by name.

    Attributes:
        chip: The kind of chip, e.g. "h100".
        num_hosts: Hosts, one fast interconnect each.
        chips_per_host: Chips of each host.
    """

    chip: str
    num_hosts: int
    chips_per_host: int

    @property
    def num_chips(self) -> int:
        """All chips of the pod."""
        return self.num_hosts * self.chips_per_host


def parse_pod(name: str) -> Pod:
    """Reads the name of a pod.

    Args:
        name: `chip:hosts x chips per host`.

    Returns:
        The pod.

    Raises:
        PodError: The name is spelled otherwise, or the chip is unknown.

    Example:
        >>> parse_pod("h100:128x8").num_chips
        1024
    """
    match = _POD.fullmatch(name)
    if match is None or match["chip"] not in _CHIPS:
        raise PodError(
            format_problem(
                f"Unknown pod {name!r}.",
                [(f"{chip}:HxG", "H hosts of G chips") for chip in _CHIPS],
                f'write for example "{_CHIPS[0]}:8x8".',
            )
        )
    return Pod(
        chip=match["chip"],
        num_hosts=int(match["hosts"]),
        chips_per_host=int(match["chips"]),
    )


def gpu_devices(topology: str, *, chip: str = "h100") -> tuple[Any, ...]:
    """Returns device-less GPUs, to compile for and not to run on.

    Args:
        topology: `slices x hosts x GPUs per host`, e.g. "1x8x8" for 64 GPUs.
        chip: The kind of GPU.

    Returns:
        The devices, those of one host next to one another.

    Raises:
        PodError: The text or the chip is unknown, a wheel is missing (the message
            has the command that installs it), or JAX refused the plugin earlier in
            this process.
    """
    if _TOPOLOGY.fullmatch(topology) is None:
        raise PodError(
            format_problem(
                f"Unknown topology {topology!r}.",
                (),
                'write slices x hosts x GPUs per host, for example "1x8x8".',
            )
        )
    target = resources.files("jzero.audit") / "targets" / f"{chip}.textproto"
    if chip not in _CHIPS:
        raise PodError(
            format_problem(
                f"Unknown chip {chip!r}.", (), f"known are {', '.join(_CHIPS)}."
            )
        )
    _check_wheels()
    with _plugin_allowed():
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


def pod_mesh(
    name: str,
    *,
    axis: str | Sequence[str] = "data",
    shape: Sequence[int] | None = None,
) -> Mesh:
    """Returns a mesh of a pod that is not there.

    Args:
        name: As `parse_pod` reads it, e.g. "h100:8x8".
        axis: The name of its axis, or of its axes.
        shape: Lengths of the axes; needed if there are several.

    Returns:
        A mesh with Auto axes. Programs over it can be lowered and compiled.

    Raises:
        PodError: As `parse_pod` and `gpu_devices`, or the shape is not that of the
            axes or does not hold the pod's chips.
    """
    pod = parse_pod(name)
    axes = (axis,) if isinstance(axis, str) else tuple(axis)
    lengths = (pod.num_chips,) if shape is None else tuple(shape)
    if len(lengths) != len(axes) or np.prod(lengths) != pod.num_chips:
        raise PodError(
            format_problem(
                f"Axes {axes} of lengths {lengths} do not hold the {pod.num_chips} "
                f"chips of {name!r}.",
                (),
                "give shape=, one length per axis, with that product.",
            )
        )
    devices = gpu_devices(f"1x{pod.num_hosts}x{pod.chips_per_host}", chip=pod.chip)
    return Mesh(
        np.array(devices).reshape(lengths),
        axes,
        axis_types=(AxisType.Auto,) * len(axes),
    )


def _check_wheels() -> None:
    missing = missing_wheels()
    if missing:
        raise PodError(
            format_problem(
                "Compiling for GPUs that are not there needs wheels that are not "
                "installed:",
                missing,
                f"{shlex.join(install_command(missing))}   "
                "(or: python -m jzero.audit.setup_aot)",
            )
        )


@contextmanager
def _plugin_allowed() -> Iterator[None]:
    """Lets JAX take the plugin without a driver, if it has not looked yet."""
    before = os.environ.get(_SKIP_CHECK)
    os.environ[_SKIP_CHECK] = before or "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SKIP_CHECK]
