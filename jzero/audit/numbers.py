"""Numbers as people read them.

Lives here: how reports write bytes, operations, times and shares, and where an axis
has its ticks. May import: nothing of jzero. Read next: `report_html.py`.
"""

from __future__ import annotations

from math import floor, log10

__all__ = [
    "axis_ticks",
    "format_flops",
    "format_seconds",
    "format_share",
    "format_size",
]


def format_size(num_bytes: float) -> str:
    """Writes a number of bytes, in powers of 1000.

    Example:
        >>> format_size(48), format_size(1_105_200_000)
        ('48 B', '1.11 GB')
    """
    value, unit = float(num_bytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} B" if unit == "B" else f"{_three_digits(value)} {unit}"


def format_flops(flops: float) -> str:
    """Writes a number of floating point operations.

    Example:
        >>> format_flops(1.3e12), format_flops(9.89e14), format_flops(0)
        ('1.3 TFLOP', '989 TFLOP', '0 MFLOP')
    """
    value, unit = flops / 1e6, "M"
    for unit in ("M", "G", "T", "P"):
        if value < 999.5 or unit == "P":
            break
        value /= 1000
    return f"{_three_digits(value)} {unit}FLOP"


def format_seconds(seconds: float) -> str:
    """Writes a time, in the unit that leaves few digits before the point.

    Example:
        >>> format_seconds(0.00489), format_seconds(2.5e-6), format_seconds(0)
        ('4.89 ms', '2.5 µs', '0 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= 0.9995 * scale or not seconds:
            return f"{_three_digits(seconds / scale)} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def format_share(part: float, whole: float) -> str:
    """Writes a part of a whole in percent; empty if there is no whole.

    Example:
        >>> format_share(1, 8), format_share(1, 100_000), format_share(1, 0)
        ('12 %', '<0.1 %', '')
    """
    if not whole:
        return ""
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "<0.1 %"
    return f"{percent:.2g} %" if percent < 99.5 else f"{percent:.0f} %"


def axis_ticks(end: float, *, num_ticks: int = 8) -> list[float]:
    """Returns round places on an axis from 0 to `end`, about `num_ticks` of them.

    Example:
        >>> axis_ticks(4.9, num_ticks=5)
        [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    if end <= 0:
        return [0.0]
    rough = end / num_ticks
    power = 10.0 ** floor(log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.9999)
    return [i * step for i in range(floor(end / step * 1.0001) + 1)]


def _three_digits(value: float) -> str:
    """Three digits, without an exponent for what no larger unit takes."""
    return f"{value:.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
