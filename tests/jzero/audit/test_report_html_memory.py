from __future__ import annotations

import itertools
from typing import Any

import pytest

from jzero.audit.report_html_memory import bar_segments, render_memory
from tests.report_records import Element, make_record, parse_page

WIDTH_OF_BAR = [
    ("m-parameter", 50),
    ("m-optimizer", 100),
    ("m-other", 2),
    ("m-data", 8),
    ("m-temporaries", 235),
    ("m-output", 5),
]


def drawn(*records: dict[str, Any], hbm_bytes: int | None = None) -> Element:
    labels = [f"record {i}" for i in range(len(records))]
    return parse_page(render_memory(records, labels, hbm_bytes=hbm_bytes))


def memory(**changes: int) -> dict[str, int]:
    return {**make_record()["memory"], **changes}


def widths(bar: Element) -> dict[str, float]:
    return {r.attributes["class"]: r.number("width") for r in bar.all("rect")}


def test_a_bar_is_as_long_as_the_peak_and_its_parts_as_their_bytes() -> None:
    bar = drawn(make_record()).one("g", "bar")
    parts = widths(bar)
    per_mb = parts["m-parameter"] / 50
    for css_class, size_mb in WIDTH_OF_BAR:
        assert parts[css_class] == pytest.approx(size_mb * per_mb, abs=0.02)
    solid = [r for r in bar.all("rect") if r.attributes["class"] != "hatched"]
    for before, after in itertools.pairwise(solid):
        end = before.number("x") + before.number("width")
        assert after.number("x") == pytest.approx(end, abs=0.02)
    assert bar.one("text", "value").text == "400 MB"


def test_bars_share_one_scale() -> None:
    half = make_record(memory=memory(temp_bytes=35_000_000))
    first, second = drawn(make_record(), half).all("g", "bar")
    assert widths(first)["m-optimizer"] == widths(second)["m-optimizer"]
    assert widths(second)["m-temporaries"] < widths(first)["m-temporaries"]


def test_waiting_gradients_are_a_hatched_part_of_the_temporaries() -> None:
    bar = drawn(make_record()).one("g", "bar")
    hatched, all_of_them = bar.one("rect", "hatched"), bar.one("rect", "m-temporaries")
    assert hatched.number("x") == all_of_them.number("x")
    ratio = hatched.number("width") / all_of_them.number("width")
    assert ratio == pytest.approx(47 / 235, abs=1e-3)
    more = drawn(make_record(waiting_gradient_bytes=300_000_000))
    assert not more.all("rect", "hatched")
    assert "hatched" not in more.text


def test_the_limit_is_a_line_at_its_place() -> None:
    page = drawn(make_record(), hbm_bytes=800_000_000)
    bar = page.one("g", "bar")
    left = bar.one("rect", "m-parameter").number("x")
    per_byte = bar.one("rect", "m-parameter").number("width") / 50e6
    x = page.one("line", "limit").number("x1")
    assert x == pytest.approx(left + 800e6 * per_byte, abs=0.2)
    assert page.one("thead").all("th")[-1].text == "of 800 MB"
    assert page.one("tbody").all("td")[-1].text == "50 %"
    assert not page.all(css_class="over")
    assert not drawn(make_record()).all("line", "limit")


def test_a_peak_beyond_the_limit_is_marked() -> None:
    page = drawn(make_record(), hbm_bytes=200_000_000)
    assert page.one("td", "over").text == "200 %"


def test_a_far_limit_does_not_press_the_bars_together() -> None:
    page = drawn(make_record(), hbm_bytes=80_000_000_000)
    assert not page.all("line", "limit")
    assert "of 80 GB" in page.one("thead").text
    assert page.one("tbody").all("td")[-1].text == "0.5 %"


def test_the_table_names_every_part_and_its_bytes() -> None:
    table = drawn(make_record()).one("table")
    heads = [th.text for th in table.one("thead").all("th")]
    cells = [td.text for td in table.one("tbody").all("td")]
    assert dict(zip(heads, cells, strict=True)) == {
        "parameters": "50 MB",
        "optimizer": "100 MB",
        "other state": "2 MB",
        "data": "8 MB",
        "temporaries": "235 MB",
        "new results": "5 MB",
        "gradients waiting": "47 MB",
        "peak": "400 MB",
    }


def test_segments_sum_to_the_peak_whatever_the_roles_say() -> None:
    for argument_bytes in (100_000_000, 160_000_000, 200_000_000):
        record = make_record(memory=memory(argument_bytes=argument_bytes))
        total = sum(segment.num_bytes for segment in bar_segments(record))
        assert total == argument_bytes + 240_000_000


def test_what_the_host_holds_is_not_in_the_bar_but_in_the_table() -> None:
    host = memory(argument_bytes=60_000_000, host_peak_bytes=100_000_000)
    page = drawn(make_record(memory=host))
    assert "m-optimizer" not in widths(page.one("g", "bar"))
    assert "host memory" in page.one("thead").text
    assert "100 MB" in page.one("tbody").text


def test_long_labels_stand_above_their_bars() -> None:
    for label, is_beside in (("stage 3", True), ("stage 3, " + "x" * 40, False)):
        bar = parse_page(render_memory([make_record()], [label])).one("g", "bar")
        name, first = bar.all("text")[0], bar.all("rect")[0]
        assert name.text == label
        assert (name.number("y") > first.number("y")) == is_beside
        assert (name.number("x") < first.number("x")) == is_beside


def test_labels_are_escaped() -> None:
    text = render_memory([make_record()], ['<script>"'])
    assert "<script" not in text
    assert '<script>"' in parse_page(text).one("tbody").text


def test_a_step_that_holds_nothing_is_drawn() -> None:
    nothing = dict.fromkeys(make_record()["memory"], 0)
    page = drawn(make_record(memory=nothing, resident=[]))
    assert page.one("g", "bar").one("text", "value").text == "0 B"
