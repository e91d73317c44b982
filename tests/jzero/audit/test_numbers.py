from __future__ import annotations

import pytest

from jzero.audit.numbers import (
    axis_ticks,
    format_flops,
    format_seconds,
    format_share,
    format_size,
)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1 kB"),
        (999_600, "1 MB"),
        (65_536_000, "65.5 MB"),
        (80e9, "80 GB"),
        (4.2e15, "4200 TB"),
    ],
)
def test_sizes(num_bytes: float, text: str) -> None:
    assert format_size(num_bytes) == text


@pytest.mark.parametrize(
    ("flops", "text"),
    [
        (2e4, "0.02 MFLOP"),
        (3.21e9, "3.21 GFLOP"),
        (2.25e15, "2.25 PFLOP"),
        (7e18, "7000 PFLOP"),
    ],
)
def test_operations(flops: float, text: str) -> None:
    assert format_flops(flops) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1.5, "1.5 s"),
        (0.9999, "1 s"),
        (4.89e-3, "4.89 ms"),
        (66e-6, "66 µs"),
        (5e-9, "5 ns"),
        (4321, "4321 s"),
    ],
)
def test_times(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 5, "0 %"),
        (1, 5000, "<0.1 %"),
        (1, 150, "0.67 %"),
        (2, 3, "67 %"),
        (3, 3, "100 %"),
        (13, 9, "144 %"),
        (1, 0, ""),
    ],
)
def test_shares(part: float, whole: float, text: str) -> None:
    assert format_share(part, whole) == text


@pytest.mark.parametrize("end", [3e-7, 0.00489, 1.0, 7.7, 6.4e8, 80e9])
@pytest.mark.parametrize("num_ticks", [5, 8, 10])
def test_ticks_are_round_and_reach_the_end(end: float, num_ticks: int) -> None:
    ticks = axis_ticks(end, num_ticks=num_ticks)
    step = ticks[1]
    assert f"{step:.0e}"[0] in "125"
    assert ticks == pytest.approx([i * step for i in range(len(ticks))])
    assert ticks[-1] <= end * 1.001 < ticks[-1] + 1.01 * step
    assert num_ticks / 2.6 <= len(ticks) <= num_ticks + 1


def test_an_axis_without_length_has_one_tick() -> None:
    assert axis_ticks(0) == [0.0]
