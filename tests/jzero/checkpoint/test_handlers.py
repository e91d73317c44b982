"""Records are committed with the step, and the checksums cover all of it."""

from __future__ import annotations

from pathlib import Path

import jzero
from jzero.checkpoint.checksums import check_files, read_checksums
from jzero.checkpoint.handlers import data_file
from jzero.checkpoint.manifest import DATA_ITEM, MANIFEST_ITEM, STATE_ITEM
from tests.jzero.checkpoint.small import begin, make_step
from tests.jzero.checkpoint.test_iterators import Position


def test_every_file_of_a_step_has_a_checksum(tmp_path: Path) -> None:
    step = make_step()
    with jzero.Checkpointer(tmp_path, step) as ckpt:
        ckpt.save(4, begin(step), data=Position({"next_index": 5}))
    folder = tmp_path / "4"
    assert {p.name for p in folder.iterdir() if p.is_dir()} == {
        STATE_ITEM,
        DATA_ITEM,
        MANIFEST_ITEM,
    }
    sums = read_checksums(folder)
    assert sums is not None
    later = {"_CHECKPOINT_METADATA", "commit_success.txt"}
    later |= {"jzero/commit_success.txt", "jzero/checksums.json"}
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert set(sums) == files - later
    assert f"{DATA_ITEM}/{data_file(0, 1)}" in sums
    assert check_files(folder, sums, sizes_only=False) == []
