"""The benchmark of consolidating, as far as it needs no other framework."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import pytest

from benchmarks.consolidate import (
    DOCUMENT,
    PART,
    Measured,
    Tool,
    jzero_tools,
    measure,
    render,
    save_with_jzero,
)
from benchmarks.document import markers, write_part
from benchmarks.peers import weights
from benchmarks.peers.cases import Size
from jzero.checkpoint import list_checkpoints

TINY = Size(vocab=512, width=32, num_layers=1, num_heads=2, num_tokens=16)


def test_a_run_of_jzero_is_measured(tmp_path: Path) -> None:
    save_with_jzero(tmp_path / "run", TINY, jax.device_count())
    (step,) = list_checkpoints(tmp_path / "run")
    assert step.is_complete and step.manifest is not None
    assert step.manifest.num_devices == jax.device_count()
    num_params = len(weights.shapes(TINY))
    roles = [leaf.role for leaf in step.manifest.leaves]
    assert roles.count("parameter") == num_params
    assert len(roles) >= 3 * num_params
    tool = jzero_tools(tmp_path / "run", tmp_path / "run")[1]
    seen = measure(tool, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    param_bytes = 4 * sum(x.size_elems for x in step.manifest.leaves[-num_params:])
    assert seen.written_bytes > param_bytes > 0
    assert seen.seconds > 0 < seen.cpu_seconds and seen.peak_bytes > 10**8


def test_a_tool_that_fails_is_told(tmp_path: Path) -> None:
    tool = Tool(name="broken", python=Path(sys.executable), command=("no_such_module",))
    with pytest.raises(RuntimeError, match=r"broken:(.|\n)*no_such_module"):
        measure(tool, tmp_path / "out")


def test_the_table_holds_medians_and_the_highest_peak() -> None:
    runs = [
        Measured(seconds=s, cpu_seconds=s / 2, peak_bytes=p, written_bytes=4 * 10**9)
        for s, p in ((1.0, 300_000_000), (4.0, 500_000_000), (2.0, 400_000_000))
    ]
    text = render({"ours": runs}, 217_000_000)
    assert "| ours | 4000 MB | 2.00 | 2.00 | 1.00 | 500 MB |" in text
    assert "217 MB are Python" in text


def test_the_document_is_written_between_its_markers(tmp_path: Path) -> None:
    copy = tmp_path / "checkpoints.md"
    copy.write_text(DOCUMENT.read_text())
    write_part(copy, PART, "the table")
    text = copy.read_text()
    begin, end = markers(PART)
    assert f"{begin}\n\nthe table\n\n{end}" in text
    assert text.startswith("# Checkpoints") and "DeepSpeed" in text
