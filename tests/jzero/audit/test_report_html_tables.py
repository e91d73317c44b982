from __future__ import annotations

from typing import Any

import pytest

from jzero.audit.report_html_tables import render_collectives, show_source
from tests.report_records import Element, make_collective, make_record, parse_page


def drawn(**changes: Any) -> Element:
    return parse_page(render_collectives(make_record(**changes), "stage 3"))


def rows_of(table: Element) -> dict[str, list[str]]:
    return {
        row.one("th").text: [td.text.strip() for td in row.all("td")]
        for part in ("tbody", "tfoot")
        for body in table.all(part)
        for row in body.all("tr")
    }


def test_totals_stand_against_the_formula() -> None:
    rows = rows_of(drawn().all("table")[0])
    assert rows == {
        "all-gather": ["200 MB", "300 MB", "1.500", "", "1", "75 MB 25 %"],
        "reduce-scatter": ["100 MB", "100 MB", "1.000", "", "1", "25 MB 25 %"],
        "all-reduce": ["none"],
        "all": ["300 MB", "400 MB", "1.333", "", "2", "100 MB 25 %"],
    }


def test_totals_are_drawn_with_the_formula_as_a_mark() -> None:
    gather, scatter = drawn().all("table")[0].all("svg", "bullet")
    whole = gather.one("rect").number("width")
    assert scatter.one("rect").number("width") == pytest.approx(whole / 3, abs=0.1)
    assert gather.one("line").number("x1") == pytest.approx(whole * 2 / 3, abs=0.1)


def test_kinds_that_the_formula_does_not_know_are_listed() -> None:
    moved = [make_collective("all-to-all", 5_000, "a.1", runs=4)]
    rows = rows_of(drawn(collectives=moved).all("table")[0])
    assert rows["all-to-all"] == ["0 B", "5 kB", "", "", "4", "1.25 kB 25 %"]


def test_the_largest_come_first_with_all_that_is_known() -> None:
    moved = [
        make_collective("all-reduce", 5, "small"),
        make_collective(
            "all-gather",
            8_000,
            "large",
            runs=4,
            dtype="f32",
            leaves=["state['a']", "state['b']", "state['c']"],
        ),
    ]
    table = drawn(collectives=moved).all("table")[1]
    first, second = table.one("tbody").all("tr")
    assert first.one("th").text == "all-gather f32"
    assert second.one("th").text == "all-reduce bf16"
    cells = [td.text for td in first.all("td")]
    assert cells == ["4", "2\u00d78", "8 kB", "", "2 kB", "state['a'] +2", "model.py:7"]
    titles = [e.attributes.get("title", "") for e in first.all()]
    assert "state['a']\nstate['b']\nstate['c']" in titles
    assert "deep/inside/model.py:7" in titles
    assert any("bf16[4,8]" in title and "jit(step)/dot" in title for title in titles)
    exposed, all_of_it = first.one("rect", "exposed"), first.all("rect", "t-all-gather")
    ratio = exposed.number("width") / all_of_it[-1].number("width")
    assert ratio == pytest.approx(0.25, abs=0.01)


def test_what_is_not_known_is_said() -> None:
    moved = [
        make_collective(
            "all-gather", 8, "g", is_runs_known=False, leaves=[], source=None
        )
    ]
    row = drawn(collectives=moved).all("table")[1].one("tbody").one("tr")
    cells = [td.text for td in row.all("td")]
    assert cells[0] == "1?"
    assert cells[-2:] == ["no leaf of the state", ""]


def test_no_more_than_twenty_are_listed_and_the_rest_summed() -> None:
    moved = [make_collective("all-gather", 1000 + i, f"g.{i}") for i in range(25)]
    page = drawn(collectives=moved)
    assert len(page.all("table")[1].one("tbody").all("tr")) == 20
    assert "5 more, 5.01 kB." in page.text
    assert "more," not in drawn().text


def test_a_record_without_collectives_has_totals_alone() -> None:
    page = drawn(collectives=[], moved_bytes=0, exposed_bytes=0)
    rows = rows_of(page.one("table"))
    assert rows["all-gather"] == ["200 MB", "0 B", "0.000", "", "0", "0 B"]
    assert "Largest" not in page.text


def test_texts_are_escaped() -> None:
    evil = "x['<script>\"&']"
    moved = [make_collective("all-gather", 8, evil, leaves=[evil], source=evil)]
    text = render_collectives(make_record(collectives=moved), evil)
    assert "<script" not in text
    assert parse_page(text).all("table")[1].text.count(evil) == 2


@pytest.mark.parametrize(
    ("source", "shown"),
    [("a\\b\\model.py:3", "model.py:3"), ("model.py:3", "model.py:3")],
)
def test_a_source_is_cut_to_its_file(source: str, shown: str) -> None:
    assert parse_page(show_source(source)).one("code").text == shown
