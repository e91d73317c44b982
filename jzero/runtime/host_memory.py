"""Whether host memory can hold what a plan puts there, asked before anything is.

Lives here: `check_host_memory`. May import: plan, errors. Read next: `birth.py`.
"""

from __future__ import annotations

from pathlib import Path

import jax
from jax.sharding import Mesh

from jzero.errors import HostMemoryError, format_problem
from jzero.plan.host import HOST
from jzero.plan.plan import Plan
from jzero.plan.table import format_bytes

__all__ = ["available_bytes", "check_host_memory"]

_MEMINFO = Path("/proc/meminfo")
_LIMIT = Path("/sys/fs/cgroup/memory.max")
_USED = Path("/sys/fs/cgroup/memory.current")


def check_host_memory(plan: Plan, mesh: Mesh, *, free_bytes: int | None) -> None:
    """Refuses a plan whose offloaded leaves have no place on this machine.

    Args:
      plan: the plan; one that offloads nothing is not looked at.
      mesh: its devices, which are there.
      free_bytes: host memory that is to be had, as `available_bytes` says; None, where
        the system does not tell, asks no more than that there is such memory.

    Raises:
      HostMemoryError: the devices know of no pinned host memory, or the leaves of all
        devices of this process need more than there is.
    """
    if not plan.host_bytes:
        return
    local = [d for d in mesh.devices.flat if d.process_index == jax.process_index()]
    for device in local[:1]:
        kinds = sorted(m.kind for m in device.addressable_memories())
        if HOST not in kinds:
            raise HostMemoryError(
                format_problem(
                    f"Devices of the kind {device.device_kind!r} have no memory of the "
                    f"kind {HOST!r}, in which offloaded leaves rest. They have:",
                    kinds,
                    "leave ZeroConfig(offload=...) out on this backend.",
                )
            )
    needed_bytes = plan.host_bytes * len(local)
    if free_bytes is None or needed_bytes <= free_bytes:
        return
    rows = sorted(
        (leaf for leaf in plan.state if leaf.is_on_host),
        key=lambda leaf: -leaf.local_bytes,
    )
    share = max(0.01, int(100 * free_bytes / needed_bytes) / 100)
    raise HostMemoryError(
        format_problem(
            f"Offloaded state needs {format_bytes(needed_bytes)} of host memory, "
            f"{format_bytes(plan.host_bytes)} for each of {len(local)} devices of this "
            f"process, and {format_bytes(free_bytes)} are to be had. The largest:",
            [(leaf.path, format_bytes(leaf.local_bytes)) for leaf in rows[:5]],
            f"offload a part, Offload(..., ratio={share:g}), or use more hosts. "
            "Nothing was allocated.",
        )
    )


def available_bytes() -> int | None:
    """Returns the bytes of host memory that this process can still take.

    Of the machine, or of the container's limit if that is less; None where the system
    does not tell (other systems than Linux).
    """
    found: list[int] = []
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    if _LIMIT.exists() and _USED.exists():
        limit = _LIMIT.read_text().strip()
        if limit.isdigit():
            found.append(max(0, int(limit) - int(_USED.read_text())))
    return min(found, default=None)
