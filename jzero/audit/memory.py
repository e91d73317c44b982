"""What a compiled program needs of a device's memory.

Lives here: `MemoryFacts` and the reader of `compiled.memory_analysis()`. May import:
nothing of jzero. Read next: `step_report.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["MemoryFacts", "read_memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """Bytes of one device, by the compiler's own count.

    Attributes:
        argument_bytes: What the arguments hold: the state and the batch, at rest.
        output_bytes: What the results hold.
        alias_bytes: The part of the results that reuses donated arguments.
        temp_bytes: The most that the program needs besides, while it runs.
        host_argument_bytes: As above, in host memory.
        host_output_bytes: As above, in host memory.
        host_alias_bytes: As above, in host memory.
        host_temp_bytes: As above, in host memory.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    host_argument_bytes: int = 0
    host_output_bytes: int = 0
    host_alias_bytes: int = 0
    host_temp_bytes: int = 0

    @property
    def device_peak_bytes(self) -> int:
        """Argument + output - alias + temp: what must fit in device memory.

        The field of the compiler that is called peak is not this: it includes host
        bytes on GPUs and TPUs and leaves out temporaries on CPUs.
        """
        return (
            self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes
        )

    @property
    def host_peak_bytes(self) -> int:
        """The same sum for host memory."""
        return (
            self.host_argument_bytes
            + self.host_output_bytes
            - self.host_alias_bytes
            + self.host_temp_bytes
        )


def read_memory(compiled: Any, *, planned_host_bytes: int = 0) -> MemoryFacts:
    """Reads the memory analysis of a compiled program.

    Args:
        compiled: A `jax.stages.Compiled`.
        planned_host_bytes: Bytes of donated arguments that rest in host memory by the
            plan. Compilers for CPUs know of one memory and count them as the
            device's; the split is then the plan's.

    Returns:
        Bytes per device.

    Raises:
        ValueError: The backend gives no analysis.
    """
    stats = compiled.memory_analysis()
    if stats is None:
        raise ValueError("This backend gives no memory analysis of its programs.")
    told_bytes = stats.host_argument_size_in_bytes
    untold_bytes = 0 if told_bytes else planned_host_bytes
    reused_bytes = min(untold_bytes, stats.alias_size_in_bytes)
    return MemoryFacts(
        argument_bytes=stats.argument_size_in_bytes - untold_bytes,
        output_bytes=stats.output_size_in_bytes - untold_bytes,
        alias_bytes=stats.alias_size_in_bytes - reused_bytes,
        temp_bytes=stats.temp_size_in_bytes,
        host_argument_bytes=told_bytes + untold_bytes,
        host_output_bytes=stats.host_output_size_in_bytes + untold_bytes,
        host_alias_bytes=stats.host_alias_size_in_bytes + reused_bytes,
        host_temp_bytes=stats.host_temp_size_in_bytes,
    )
