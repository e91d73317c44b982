from __future__ import annotations

import pytest

from jzero.audit.report_html_bars import merge_bars, subtract
from tests.report_records import make_event

MS_PER_PX = 1e-3


def test_wide_bars_stay_as_they_are() -> None:
    events = [
        make_event("network", 0, 2, "all-gather", "a.1"),
        make_event("network", 2, 4, "all-gather", "a.2"),
    ]
    bars = merge_bars(events, MS_PER_PX)
    assert [(bar.name, bar.num_events) for bar in bars] == [("a.1", 1), ("a.2", 1)]


def test_bars_too_narrow_to_see_share_one_of_a_pixel() -> None:
    events = [
        make_event("compute", i / 100, (i + 1) / 100, "forward" if i % 3 else "update")
        for i in range(1000)
    ]
    bars = merge_bars(events, MS_PER_PX)
    assert 9 <= len(bars) <= 11
    assert sum(bar.num_events for bar in bars) == 1000
    assert {bar.label for bar in bars} == {"forward"}
    assert bars[0].start_seconds == 0
    assert bars[-1].end_seconds == pytest.approx(10e-3)


def test_narrow_bars_far_apart_and_beside_wide_ones_stay_alone() -> None:
    events = [
        make_event("network", 0, 0.1, "all-reduce", "r.1"),
        make_event("network", 1, 1.1, "all-reduce", "r.2"),
        make_event("network", 1.1, 3, "all-gather", "g.1"),
        make_event("network", 3, 3.1, "all-reduce", "r.3"),
    ]
    names = [bar.name for bar in merge_bars(events, MS_PER_PX)]
    assert names == ["r.1", "r.2", "g.1", "r.3"]


def test_no_events_make_no_bars() -> None:
    assert merge_bars([], MS_PER_PX) == []


@pytest.mark.parametrize(
    ("spans", "holes", "left"),
    [
        ([], [(0, 1)], []),
        ([(0, 2)], [], [(0, 2)]),
        ([(0, 2)], [(0, 2)], []),
        ([(0, 2)], [(-1, 5)], []),
        ([(0, 9)], [(6, 7), (1, 2), (1, 3)], [(0, 1), (3, 6), (7, 9)]),
        ([(0, 1), (1, 2), (4, 5)], [(1.5, 4.5)], [(0, 1.5), (4.5, 5)]),
        ([(0, 2), (3, 5)], [(1, 4)], [(0, 1), (4, 5)]),
    ],
)
def test_what_no_hole_covers_is_left(
    spans: list[tuple[float, float]],
    holes: list[tuple[float, float]],
    left: list[tuple[float, float]],
) -> None:
    assert subtract(spans, holes) == left
