"""What memory this process holds, and held at most, by the kernel's own count.

Lives here: `resident_bytes`, `peak_bytes` and `start_peak`, for Linux. May import:
nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["peak_bytes", "resident_bytes", "start_peak"]


def resident_bytes() -> int:
    """Returns what is resident now."""
    return _field_bytes("VmRSS")


def peak_bytes() -> int:
    """Returns the most that was resident since `start_peak`, or ever."""
    return _field_bytes("VmHWM")


def start_peak() -> None:
    """Starts the peak anew, from what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def _field_bytes(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    match = re.search(rf"{name}:\s+(\d+) kB", text)
    assert match is not None
    return int(match[1]) * 1024
