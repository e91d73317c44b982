"""The figures of offloading, compiled small for a GPU that is not there."""

from __future__ import annotations

import re

import pytest

from benchmarks.offload import DOCUMENT, Size, adam_rows, headline_rows
from tests.needs import needs_compiler


@needs_compiler
def test_the_window_bounds_what_is_on_the_device() -> None:
    rows = {row[0]: [float(cell) for cell in row[1:]] for row in adam_rows(8, 1024)}
    one, four, unbound, host = (
        rows[name] for name in ("one leaf", "four leaves", "no bound", 'compute="host"')
    )
    leaf_mib, moments_mib = 4, 2 * 8 * 4
    assert one[0] <= 4 * leaf_mib
    assert one[0] <= four[0] < unbound[0]
    for temp, at_rest, extra, copied_in, copied_back in (one, four, unbound):
        assert temp >= 0
        assert at_rest == moments_mib
        assert extra == 0
        assert copied_in == copied_back == moments_mib
    # Gradients go down, new values come up, moments do not move.
    assert host[3] <= moments_mib / 2


@needs_compiler
def test_a_scanned_model_keeps_one_layer_on_the_device() -> None:
    size = Size(width=512, num_layers=8, num_tokens=64)
    rows = {
        row[0]: [float(cell) for cell in row[1:]]
        for row in headline_rows(size, cases=("nothing", "both"), stages=(3,))
    }
    nothing, both = rows["nothing, stage 3"], rows["both, stage 3"]
    assert nothing[1] == 0
    assert both[1] == pytest.approx(both[2], rel=0.01)
    assert both[0] < 0.6 * nothing[0]


def test_the_document_holds_what_was_asked() -> None:
    text = DOCUMENT.read_text()
    table = dict(re.findall(r"^\| ([^|]*) \| *([\d.]+) \|", text, re.MULTILINE))
    assert float(table["one leaf"]) <= 260
    assert all(float(table[f"both, stage {stage}"]) < 80 for stage in (1, 2, 3))
