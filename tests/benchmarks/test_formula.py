"""Reports hold and send what is counted by hand; the rest is in the document."""

from __future__ import annotations

import pytest

from benchmarks.document import markers
from benchmarks.formula import DOCUMENT, PART, PODS, STAGES, count_row, render
from tests.needs import needs_compiler

# All rows stand in the document. Compiled here are every stage, and the last, which
# has most to count, both ways and for every number of devices.
COMPILED = [
    (64, True, 0),
    (8, False, 1),
    (64, True, 2),
    (8, True, 3),
    (64, False, 3),
    (1024, True, 3),
]


@needs_compiler
@pytest.mark.parametrize(("num_devices", "is_scanned", "stage"), COMPILED)
def test_a_gpt_holds_and_sends_what_is_counted_by_hand(
    num_devices: int, is_scanned: bool, stage: int
) -> None:
    row = count_row(num_devices, is_scanned, stage)
    report = row.report
    rows = {role.role: role for role in report.resident}
    assert row.reported_bytes == pytest.approx(row.resident_bytes, rel=0.01)
    assert report.memory.argument_bytes == pytest.approx(row.resident_bytes, rel=0.01)
    held = rows["parameter"].compiled_bytes
    assert rows["optimizer"].compiled_bytes == pytest.approx(2 * held, rel=0.01)
    for role in rows.values():
        assert role.planned_bytes == pytest.approx(role.compiled_bytes, rel=0.01)
    assert report.moved_bytes == pytest.approx(row.moved_bytes, rel=0.01)
    if stage < 3:
        assert report.traffic.moved_bytes == pytest.approx(row.moved_bytes, rel=0.01)
    assert (report.num_devices, report.platform) == (num_devices, "gpu")
    assert report.elem_bytes == 2
    assert report.findings == ()
    assert row.name in render([row.cells])


def test_all_rows_of_the_document_are_within_a_hundredth() -> None:
    begin, end = markers(PART)
    made = DOCUMENT.read_text().split(begin)[1].split(end)[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in made.strip().splitlines()[2:]
        if line.startswith("|")
    ]
    blocks = ("unrolled", "scanned")
    every = [
        f"{num}, {kind}, {stage}" for num in PODS for kind in blocks for stage in STAGES
    ]
    names = [row[0] for row in cells]
    assert names == [name for name in every if name in names]
    assert {name.split(",")[0] for name in names} == {str(num) for num in PODS}
    for row in cells:
        for ratio in (row[3], row[6]):
            assert float(ratio) == pytest.approx(1, abs=0.01), row[0]
