"""Commands that share a document leave each other's parts alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.document import markdown_table, markers, write_part

ROOT = Path(__file__).resolve().parents[2]


def test_a_part_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    one, two = ("\nold\n".join(markers(name)) for name in ("one", "two"))
    path.write_text(f"before\n{one}\nbetween\n{two}\nafter\n")
    for _ in range(2):
        write_part(path, "one", "new")
    begin, end = markers("one")
    assert path.read_text() == (
        f"before\n{begin}\n\nnew\n\n{end}\nbetween\n{two}\nafter\n"
    )


@pytest.mark.parametrize("text", ["", "{begin}", "{begin}{end}{begin}{end}"])
def test_a_part_needs_its_markers_once(tmp_path: Path, text: str) -> None:
    begin, end = markers("one")
    path = tmp_path / "page.md"
    path.write_text(text.format(begin=begin, end=end))
    with pytest.raises(ValueError, match="once each"):
        write_part(path, "one", "new")
    assert path.read_text() == text.format(begin=begin, end=end)


def test_tables_are_markdown() -> None:
    assert markdown_table(("case", "MB"), [("a", "1"), ("b", "22")]) == (
        "| case | MB |\n| --- | ---: |\n| a | 1 |\n| b | 22 |"
    )


def test_the_committed_document_has_the_parts_that_commands_write() -> None:
    document = (ROOT / "docs" / "benchmarks.md").read_text()
    for name in ("annotations", "formula", "peers"):
        begin, end = markers(name)
        made = document.split(begin)[1].split(end)[0]
        assert made.count("\n|") > 10, name
        assert f"python -m benchmarks.{name}" in document
