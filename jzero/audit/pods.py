"""Pods that are not there, by name: `jzero.pods`.

    mesh = jzero.pods.pod_mesh("h100:8x8")       # 8 hosts of 8 GPUs, one axis "data"
    step = jzero.shard_train_step(train_step, stage=3, mesh=mesh)
    print(step.compile(state_shapes, batch_shapes).report())     # nothing has run

| name | what |
|---|---|
| `a100-40:HxG`, `a100-80:HxG`, `h100:HxG`, `h200:HxG`, `b200:HxG` | H hosts of G GPUs |
| `v5e:AxB`, `v5p:AxBxC`, `v6e:AxB` | one TPU slice with these sides |

Lives here: names of pods, and meshes of their devices, whose programs the real
compiler builds. Memory and collectives of such programs are what the compiler says;
times are estimates (`timeline.py`), since nothing runs. May import: `chips`,
`devices`, `errors`. Read next: `devices.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from jzero.audit.chips import ChipFacts, chip_facts, known_chips
from jzero.audit.devices import (
    COMPILER_OPTIONS,
    PodError,
    PodNameError,
    gpu_devices,
    tpu_devices,
)
from jzero.errors import format_problem

__all__ = [
    "COMPILER_OPTIONS",
    "ChipFacts",
    "Pod",
    "PodError",
    "PodNameError",
    "chip_facts",
    "gpu_devices",
    "known_chips",
    "parse_pod",
    "pod_mesh",
    "tpu_devices",
]

_POD = re.compile(r"(?P<chip>[a-z0-9\-]+):(?P<shape>[0-9]+(?:x[0-9]+)+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod by name. Nothing runs on it.

    Attributes:
        chip: The kind of chip, e.g. "h100".
        shape: The numbers of its name: (hosts, GPUs per host), or the sides of a
            TPU slice.
    """

    chip: str
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """As `parse_pod` reads it."""
        return f"{self.chip}:{'x'.join(map(str, self.shape))}"

    @property
    def facts(self) -> ChipFacts:
        """What is stated of its chips."""
        return chip_facts(self.chip)

    @property
    def num_chips(self) -> int:
        """All chips of the pod."""
        return math.prod(self.shape)

    @property
    def chips_per_host(self) -> int:
        """Chips of each host."""
        is_gpu = self.facts.kind == "gpu"
        return self.shape[1] if is_gpu else self.facts.max_chips_per_host

    @property
    def num_hosts(self) -> int:
        """Hosts, each with the same number of chips."""
        return self.num_chips // self.chips_per_host

    @property
    def has_host_memory(self) -> bool:
        """Whether its devices tell the compiler of host memory.

        GPUs that are not there do not: `pinned_host` on an input is dropped without
        a word, so a compile for them must not be asked for host bytes.
        """
        return self.facts.kind == "tpu"

    def __str__(self) -> str:
        hosts = "host" if self.num_hosts == 1 else "hosts"
        return (
            f"{self.name}: {self.num_chips} x {self.facts.description} in "
            f"{self.num_hosts} {hosts}, not there: compiled for, nothing runs"
        )


def parse_pod(name: str) -> Pod:
    """Reads the name of a pod.

    Args:
        name: `chip:hosts x GPUs per host`, or `chip:` and the sides of a TPU slice.

    Returns:
        The pod.

    Raises:
        PodNameError: The name is spelled otherwise, the chip is unknown, a number is
            zero, or there is no pod of this shape or size.

    Example:
        >>> parse_pod("h100:128x8").num_chips
        1024
        >>> print(parse_pod("v5p:2x2x2"))
        v5p:2x2x2: 8 x Google TPU v5p in 2 hosts, not there: compiled for, nothing runs
    """
    match = _POD.fullmatch(name)
    if match is None or match["chip"] not in known_chips():
        facts = [chip_facts(chip) for chip in known_chips()]
        raise PodNameError(
            format_problem(
                f"Unknown pod {name!r}. Known are:",
                [
                    (
                        fact.pattern,
                        f"H hosts of G {fact.description}"
                        if fact.kind == "gpu"
                        else f"a slice of {fact.description}",
                    )
                    for fact in facts
                ],
                'write for example "h100:8x8" or "v5e:4x4".',
            )
        )
    chip = chip_facts(match["chip"])
    shape = tuple(int(side) for side in match["shape"].split("x"))
    problem = _problem_of_shape(chip, shape)
    if problem is not None:
        raise PodNameError(
            format_problem(f"There is no pod {name!r}: {problem[0]}", (), problem[1])
        )
    return Pod(chip=chip.chip, shape=shape)


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
        A mesh with Auto axes. Programs over it can be lowered and compiled. GPUs lie
        host by host, TPUs as JAX lays them out in a torus.

    Raises:
        PodNameError: As `parse_pod`, or the shape is not that of the axes or does
            not hold the pod's chips.
        PodError: As `gpu_devices` and `tpu_devices`.
    """
    pod = parse_pod(name)
    axes = (axis,) if isinstance(axis, str) else tuple(axis)
    lengths = (pod.num_chips,) if shape is None else tuple(shape)
    if len(lengths) != len(axes) or math.prod(lengths) != pod.num_chips:
        raise PodNameError(
            format_problem(
                f"Axes {axes} of lengths {lengths} do not hold the {pod.num_chips} "
                f"chips of {name!r}.",
                (),
                "give shape=, one length per axis, with that product.",
            )
        )
    sides = "x".join(map(str, pod.shape))
    if pod.facts.kind == "gpu":
        devices = gpu_devices(f"1x{sides}", chip=pod.chip)
        laid_out = np.array(devices).reshape(lengths)
    else:
        laid_out = mesh_utils.create_device_mesh(
            lengths,
            tpu_devices(sides, chip=pod.chip),
            allow_split_physical_axes=True,
        )
    return Mesh(laid_out, axes, axis_types=(AxisType.Auto,) * len(axes))


def _problem_of_shape(
    chip: ChipFacts, shape: tuple[int, ...]
) -> tuple[str, str] | None:
    """What is wrong with a shape, and the remedy; None if there is such a pod."""
    if len(shape) != chip.num_dims:
        return (
            f"{chip.chip} takes {chip.num_dims} numbers, not {len(shape)}.",
            f"write {chip.pattern}.",
        )
    if 0 in shape:
        return ("it has no chips.", "make every number at least 1.")
    if math.prod(shape) > chip.max_chips:
        return (
            f"it is too large, {math.prod(shape)} chips.",
            f"take at most {chip.max_chips} chips of {chip.chip}.",
        )
    if chip.kind == "gpu":
        if shape[1] <= chip.max_chips_per_host:
            return None
        return (
            f"a host has no {shape[1]} GPUs of this kind.",
            f"take at most {chip.max_chips_per_host} GPUs per host, and more hosts.",
        )
    multiple = chip.slice_multiple
    if shape in chip.slice_shapes:
        return None
    if multiple and all(side % multiple == 0 for side in shape):
        return None
    shapes = ", ".join("x".join(map(str, known)) for known in chip.slice_shapes)
    others = f", or multiples of {multiple} only" if multiple else ""
    return (
        f"{chip.description} has no slice of this shape.",
        f"take one of {shapes}{others}.",
    )
