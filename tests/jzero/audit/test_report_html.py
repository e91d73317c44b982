from __future__ import annotations

import json
import re
from typing import Any

import pytest

from jzero.audit.report_html import label_records, render_html
from tests.report_records import Element, make_collective, make_record, parse_page


def page_of(*records: dict[str, Any], **settings: Any) -> Element:
    return parse_page(render_html(records, **settings))


def make_finding(where: str, num_bytes: int) -> dict[str, Any]:
    return {
        "kind": "wide-gather",
        "where": where,
        "num_bytes": num_bytes,
        "detail": f"f32 gather of {where}",
        "remedy": "jax.numpy.astype before use",
    }


def test_the_page_needs_nothing_else() -> None:
    text = render_html([make_record()])
    assert text.startswith("<!DOCTYPE html>")
    page = parse_page(text.removeprefix("<!DOCTYPE html>"))
    for tag in ("script", "link", "img", "iframe", "object", "a", "use", "image"):
        assert not page.all(tag)
    for element in page.all():
        assert not {"src", "href", "style", "xlink:href"} & set(element.attributes)
        assert not [name for name in element.attributes if name.startswith("on")]
    assert not re.search(r"https?:|//|@import|@font-face", text)
    assert set(re.findall(r"url\((.*?)\)", text)) == {"#hatch"}
    assert page.one("pattern").attributes["id"] == "hatch"
    policy = [m for m in page.all("meta") if "http-equiv" in m.attributes]
    assert "default-src 'none'" in policy[0].attributes["content"]


def test_every_class_has_its_style() -> None:
    moved = [make_collective("all-to-all", 5, "a.1"), *make_record()["collectives"]]
    record = make_record(collectives=moved, findings=[make_finding("w", 5)])
    page = page_of(record, hbm_bytes=100_000_000)
    style = page.one("style").text
    used = {c for e in page.all() for c in e.attributes.get("class", "").split()}
    # These two tell what a thing is and look like anything else.
    used -= {"memory", "timeline", "sent", "bar"}
    assert not {c for c in used if not re.search(rf"\.{c}\b(?!-)", style)}
    assert "prefers-color-scheme: dark" in style
    assert "@media print" in style
    names = set(re.findall(r"var\((--[\w-]+)\)", style))
    dark = style[style.index("dark)") : style.index("box-sizing")]
    assert names <= set(re.findall(r"(--[\w-]+):", dark))


def test_the_head_says_what_and_where() -> None:
    head = page_of(make_record(), title="My run").one("header")
    assert head.one("h1").text == "My run"
    facts = {
        div.one("dt").text: div.one("dd").text for div in head.one("dl").all("div")
    }
    assert facts == {
        "program": "jit_step",
        "stage": "3",
        "mesh": "replica=2, data=8",
        "devices": "16",
        "platform": "gpu",
    }
    lead = "Compiled for 16 devices that are not here; nothing ran."
    assert head.one("p", "lead").text == lead


def test_the_head_lists_each_fact_of_several_records_once() -> None:
    records = [make_record(stage=stage) for stage in (0, 3)]
    head = page_of(*records).one("header")
    assert [dd.text for dd in head.all("dd")][:3] == [
        "jit_step",
        "0, 3",
        "replica=2, data=8",
    ]
    assert len(head.all("p", "lead")) == 1


def test_one_bar_one_schedule_and_one_row_a_record() -> None:
    for num in (1, 3):
        page = page_of(*(make_record(stage=stage) for stage in range(num)))
        assert len(page.all("g", "bar")) == num
        assert len(page.all("figure", "schedule")) == num
        assert len(page.all("section", "sent")) == num
        overview = page.one("table", "overview")
        labels = [row.one("th").text for row in overview.one("tbody").all("tr")]
        assert labels == [f"stage {stage}" for stage in range(num)]
        ids = [e.attributes["id"] for e in page.all() if "id" in e.attributes]
        assert len(ids) == len(set(ids))


def test_the_overview_has_the_numbers() -> None:
    overview = page_of(make_record()).one("table", "overview")
    heads = [th.text for th in overview.one("thead").all("th")]
    cells = [td.text for td in overview.one("tbody").all("td")]
    assert dict(zip(heads, cells, strict=True)) == {
        "at rest": "160 MB",
        "peak": "400 MB",
        "sent per step": "400 MB",
        "of it not hidden": "25 %",
        "step, estimated": "10 ms",
        "arithmetic": "2.5 TFLOP",
        "findings": "0",
    }


def test_findings_come_before_the_figures_and_worst_first() -> None:
    records = [
        make_record(stage=1, findings=[make_finding("small", 5)]),
        make_record(stage=3, findings=[make_finding("large", 7_000_000)]),
    ]
    page = page_of(*records)
    parts = page.one("main").children
    tags = [p.attributes.get("class", p.tag) for p in parts if isinstance(p, Element)]
    assert tags[:3] == ["header", "findings", "overview"]
    box = page.one("section", "findings")
    assert box.one("h2").text == "2 findings, worst first"
    first, second = box.all("li")
    for text in ("wide-gather", "7 MB", "stage 3", "f32 gather of large."):
        assert text in first.text
    assert "Remedy: jax.numpy.astype before use." in first.text
    assert "stage 1" in second.text
    assert not page.all("p", "no-findings")


def test_no_findings_are_said_quietly() -> None:
    page = page_of(make_record())
    assert page.one("p", "no-findings").text.startswith("No findings")
    assert not page.all("section", "findings")


def test_the_limit_reaches_the_picture() -> None:
    assert page_of(make_record(), hbm_bytes=800_000_000).all("line", "limit")
    assert not page_of(make_record()).all("line", "limit")


def test_nothing_in_a_record_becomes_markup() -> None:
    evil = "\"'><script>alert(1)</script>&"
    moved = make_record()["collectives"]
    for row in moved:
        row.update(leaves=[evil], source=evil, op_name=evil, name=evil, dtype=evil)
        row.update(kind=evil, operands=[evil])
    estimate = make_record()["estimate"]
    estimate["speeds_of"] = evil
    for event in estimate["events"]:
        event.update(label=evil, name=evil)
    finding = dict.fromkeys(("kind", "where", "detail", "remedy"), evil)
    record = make_record(
        name=evil,
        platform=evil,
        ran_on=evil,
        axis_sizes={evil: 16},
        collectives=moved,
        estimate=estimate,
        findings=[{**finding, "num_bytes": 1}],
    )
    role = {**record["resident"][0], "role": evil}
    record["resident"] = [role, *record["resident"][1:]]
    other = make_record()
    text = render_html([record, other], title=evil)
    assert "<script" not in text
    page = parse_page(text)
    assert page.one("h1").text == evil
    known = {"class", "title", "id", "lang", "charset", "name", "content", "scope"}
    used = {name for e in page.one("body").all() for name in e.attributes}
    assert not {n for n in used - known if "script" in n or n.startswith("on")}


def test_a_record_without_collectives_and_events_makes_a_page() -> None:
    estimate = {**make_record()["estimate"], "seconds": 0.0, "exposed_seconds": 0.0}
    estimate["events"] = []
    formula = dict.fromkeys(make_record()["formula"], 0) | {"elem_bytes": 4}
    record = make_record(
        collectives=[],
        moved_bytes=0,
        exposed_bytes=0,
        formula=formula,
        estimate=estimate,
        axis_sizes={},
        num_devices=1,
        ran_on="",
    )
    page = page_of(record)
    assert len(page.all("g", "bar")) == 1
    assert "nothing that takes time" in page.text
    assert "Largest" not in page.text
    assert not page.all("p", "lead")


def test_shares_too_small_to_write_are_no_markup() -> None:
    estimate = {**make_record()["estimate"], "exposed_seconds": 1e-9}
    moved = [make_collective("all-gather", 10**9, "g", exposed_bytes=1)]
    text = render_html(
        [make_record(estimate=estimate, collectives=moved, exposed_bytes=1)],
        hbm_bytes=10**13,
    )
    assert "<0.1" not in text
    # In the overview, of the device, of each kind and of all, and over time.
    assert text.count("&lt;0.1 %") == 5


def test_a_record_survives_json() -> None:
    record = make_record()
    assert render_html([json.loads(json.dumps(record))]) == render_html([record])


def test_no_record_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        render_html([])


@pytest.mark.parametrize(
    ("records", "labels"),
    [
        ([{"stage": 2}], ["stage 2"]),
        ([{"stage": 0}, {"stage": 3}], ["stage 0", "stage 3"]),
        ([{"name": "a"}, {"name": "b"}], ["stage 3, a", "stage 3, b"]),
        (
            [{"axis_sizes": {"data": 8}}, {"axis_sizes": {"data": 64}}],
            ["stage 3, data=8", "stage 3, data=64"],
        ),
        ([{}, {}, {"stage": 1}], ["stage 3, no. 1", "stage 3, no. 2", "stage 1"]),
    ],
)
def test_labels_tell_records_apart(
    records: list[dict[str, Any]], labels: list[str]
) -> None:
    assert label_records([make_record(**changes) for changes in records]) == labels
