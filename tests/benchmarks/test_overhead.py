"""The benchmark of calls compares ours with two equal ones."""

from __future__ import annotations

import math

import pytest

from benchmarks import overhead


def test_three_calls_are_compared_on_one_state(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert math.isfinite(overhead.compare_calls(8, num_rounds=1))
    assert "8 leaves, 8 devices: bare" in capsys.readouterr().out
