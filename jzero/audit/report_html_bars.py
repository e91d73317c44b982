"""Which bars a timeline shows, and which stretches of time nothing covers.

Lives here: `merge_bars`, for events too short to see, and `subtract`, which finds where
the network works and nothing else does. May import: nothing of jzero. Read next:
`report_html_timeline.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Bar", "Span", "merge_bars", "subtract"]

Span = tuple[float, float]
"""Start and end in seconds."""

# Narrower bars than this are put together, until they are this wide.
_NARROW_PX, _MERGED_PX = 0.3, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What is drawn of one event, or of many short ones.

    Attributes:
        label: The phase or kind; of many, the one that takes most time.
        start_seconds: Since the start of the step.
        end_seconds: Likewise.
        name: The collective's instruction; empty for arithmetic or many.
        num_events: Events that it stands for.
    """

    label: str
    start_seconds: float
    end_seconds: float
    name: str
    num_events: int


def merge_bars(events: Iterable[Mapping[str, Any]], seconds_per_px: float) -> list[Bar]:
    """Makes bars of the events of one lane; those too narrow to see share one.

    Args:
        events: By start.
        seconds_per_px: Seconds that a pixel of the picture stands for.

    Returns:
        Bars, of which none but stragglers is narrower than the eye can tell.
    """
    narrow, wide = _NARROW_PX * seconds_per_px, _MERGED_PX * seconds_per_px
    bars: list[Bar] = []
    group: list[Mapping[str, Any]] = []
    for event in events:
        start, end = event["start_seconds"], event["end_seconds"]
        is_narrow = end - start < narrow
        if group and (
            not is_narrow
            or start - group[-1]["end_seconds"] >= narrow
            or start - group[0]["start_seconds"] >= wide
        ):
            bars.append(_bar(group))
            group = []
        if is_narrow:
            group.append(event)
        else:
            bars.append(_bar([event]))
    return [*bars, _bar(group)] if group else bars


def _bar(group: Sequence[Mapping[str, Any]]) -> Bar:
    seconds: dict[str, float] = {}
    for event in group:
        took = event["end_seconds"] - event["start_seconds"]
        seconds[event["label"]] = seconds.get(event["label"], 0.0) + took
    return Bar(
        label=max(seconds, key=seconds.__getitem__),
        start_seconds=group[0]["start_seconds"],
        end_seconds=max(event["end_seconds"] for event in group),
        name=group[0].get("name", "") if len(group) == 1 else "",
        num_events=len(group),
    )


def subtract(spans: Iterable[Span], holes: Iterable[Span]) -> list[Span]:
    """Returns the parts of `spans` that no hole covers, touching ones joined.

    Example:
        >>> subtract([(0, 4), (4, 6)], [(1, 2), (5, 9)])
        [(0, 1), (2, 5)]
    """
    left: list[Span] = []
    cuts = list(_join(holes))
    first = 0
    for start, end in _join(spans):
        while first < len(cuts) and cuts[first][1] <= start:
            first += 1
        for hole_start, hole_end in cuts[first:]:
            if hole_start >= end:
                break
            if hole_start > start:
                left.append((start, hole_start))
            start = max(start, hole_end)
        if start < end:
            left.append((start, end))
    return left


def _join(spans: Iterable[Span]) -> Iterator[Span]:
    joined: Span | None = None
    for start, end in sorted(spans):
        if joined is not None and start <= joined[1]:
            joined = (joined[0], max(joined[1], end))
            continue
        if joined is not None:
            yield joined
        joined = (start, end)
    if joined is not None:
        yield joined
