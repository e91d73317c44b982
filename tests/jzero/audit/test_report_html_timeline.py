from __future__ import annotations

from typing import Any

import pytest

from jzero.audit.report_html_timeline import render_timeline
from tests.report_records import (
    Element,
    make_collective,
    make_event,
    make_record,
    parse_page,
)


def drawn(*records: dict[str, Any]) -> Element:
    labels = [f"record {i}" for i in range(len(records))]
    return parse_page(render_timeline(records, labels))


def estimated(events: list[dict[str, Any]], seconds: float = 10e-3) -> dict[str, Any]:
    estimate = {**make_record()["estimate"], "seconds": seconds, "events": events}
    return make_record(estimate=estimate)


def spans_ms(figure: Element, css_class: str) -> list[tuple[float, float]]:
    """Start and end of the bars of a class by the ticks of the axis."""
    ticks = {tick.text: tick.number("x") for tick in figure.all("text", "tick")}
    zero, per_ms = ticks["0 ms"], ticks["1"] - ticks["0 ms"]
    rects = figure.one("svg", "chart").all("rect", css_class)
    return [
        (
            (r.number("x") - zero) / per_ms,
            (r.number("x") + r.number("width") - zero) / per_ms,
        )
        for r in rects
    ]


def near(*spans: tuple[float, float]) -> list[Any]:
    return [pytest.approx(span, abs=0.02) for span in spans]


def test_bars_lie_where_the_events_are() -> None:
    figure = drawn(make_record()).one("figure")
    assert spans_ms(figure, "t-forward") == near((0, 3))
    assert spans_ms(figure, "t-backward") == near((5, 8))
    assert spans_ms(figure, "t-update") == near((8, 10))
    assert spans_ms(figure, "t-all-gather") == near((2, 5))
    assert spans_ms(figure, "t-reduce-scatter") == near((7, 8))


def test_lanes_are_apart_and_named() -> None:
    figure = drawn(make_record()).one("figure")
    compute = {
        r.number("y")
        for c in ("forward", "backward", "update")
        for r in figure.all("rect", f"t-{c}")
    }
    network = {
        r.number("y")
        for c in ("all-gather", "reduce-scatter")
        for r in figure.all("rect", f"t-{c}")
    }
    assert len(compute) == len(network) == 1
    assert max(compute) + 30 <= min(network)
    names = [text.text for text in figure.all("text", "name")]
    assert names == ["compute", "network", "not hidden"]


def test_the_network_that_nothing_hides_is_marked() -> None:
    figure = drawn(make_record()).one("figure")
    assert spans_ms(figure, "exposed") == near((3, 5))
    assert spans_ms(figure, "exposed-back") == near((3, 5))
    assert "network not hidden 2 ms (20 %)" in figure.one("figcaption").text


def test_tooltips_say_what_a_bar_is() -> None:
    figure = drawn(make_record()).one("figure")
    title = figure.one("rect", "t-all-gather").one("title").text
    for part in ("all-gather-start.1", "2 ms to 5 ms", "bf16", "300 MB", "params['w']"):
        assert part in title
    assert "forward" in figure.one("rect", "t-forward").one("title").text


def test_several_records_share_the_axis() -> None:
    half = estimated([make_event("compute", 0, 5, "forward")], seconds=5e-3)
    whole = estimated([make_event("compute", 0, 10, "forward")])
    first, second = drawn(half, whole).all("figure")
    assert spans_ms(first, "t-forward") == near((0, 5))
    ratio = first.one("rect", "t-forward").number("width") / second.one(
        "rect", "t-forward"
    ).number("width")
    assert ratio == pytest.approx(0.5, abs=1e-3)


def test_it_says_that_it_is_an_estimate_and_from_which_speeds() -> None:
    text = drawn(make_record()).text
    assert "an estimate, nothing was timed" in text
    assert "the speeds of some chip: 1 PFLOP/s" in text
    assert "400 GB/s among 8 devices" in text
    estimate = {**make_record()["estimate"], "speeds_of": "unknown"}
    assert "at nominal speeds" in drawn(make_record(estimate=estimate)).text


def test_the_legend_names_what_is_there() -> None:
    keys = [key.text for key in drawn(make_record()).all("span", "key")]
    assert keys == [
        "forward",
        "backward",
        "update",
        "all-gather",
        "reduce-scatter",
        "network not hidden",
    ]
    other = estimated([make_event("network", 0, 1, "all-to-all", "a.1")])
    page = drawn(other)
    assert "other collectives" in [key.text for key in page.all("span", "key")]
    assert spans_ms(page.one("figure"), "t-else") == near((0, 1))


def test_thousands_of_events_make_few_bars() -> None:
    events = [
        make_event(lane, i / 1000, (i + 1) / 1000, label)
        for i in range(10_000)
        for lane, label in (("compute", "forward"), ("network", "all-gather"))
    ]
    figure = drawn(estimated(events)).one("figure")
    for css_class in ("t-forward", "t-all-gather"):
        rects = figure.all("rect", css_class)
        assert 100 < len(rects) < 1000
        assert "short ones" in rects[0].one("title").text
    assert not figure.all("rect", "exposed")


def test_turns_that_are_not_drawn_are_said_to_be() -> None:
    events = [
        make_event("compute", 0, 2, "forward"),
        make_event("compute", 8, 10, "update"),
    ]
    figure = drawn(estimated(events)).one("figure")
    assert spans_ms(figure, "omitted") == near((2, 8))
    assert figure.one("text", "between").text == "repeats"
    assert not drawn(make_record()).all("rect", "omitted")


def test_a_record_without_events_says_so() -> None:
    page = drawn(estimated([], seconds=0.0))
    assert not page.all("svg", "chart")
    assert "nothing that takes time" in page.one("figure").text


def test_names_and_leaves_are_escaped() -> None:
    evil = "state['<script>alert(1)</script>']"
    record = make_record(
        collectives=[
            make_collective("all-gather", 8, "all-gather-start.1", leaves=[evil])
        ]
    )
    text = render_timeline([record], ["<script>"])
    assert "<script" not in text
    chart = parse_page(text).one("svg", "chart")
    assert evil in chart.one("rect", "t-all-gather").one("title").text
