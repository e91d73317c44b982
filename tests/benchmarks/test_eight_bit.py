"""8-bit moments beside float32 on the demo's GPT, shortened."""

from __future__ import annotations

import pytest

from benchmarks.eight_bit import Run, compare, render


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    names = ("float32 moments", "8-bit codes")
    return compare(60, names, rows=8, length=32, layers=1, width=64, heads=2)


def test_8_bit_moments_learn_like_float32(runs: list[Run]) -> None:
    base, *others = runs
    assert base.loss < 3.5, "it learns at all"
    for run in others:
        # One per cent after 500 steps of the whole model: see docs/kernels.md.
        assert run.loss == pytest.approx(base.loss, rel=0.03)
        assert run.coded_bytes is not None
        assert run.coded_bytes <= 2.1


def test_the_table_has_a_row_for_each(runs: list[Run]) -> None:
    table = render(runs, 60)
    assert table.count("\n|") == 2 + len(runs)
    assert "+0.00 %" in table
