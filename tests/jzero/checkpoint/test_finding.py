"""The newest complete step is found, and the others are told of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from etils import epath

import jzero
from jzero.checkpoint.finding import find_step
from jzero.checkpoint.processes import Meeting
from tests.jzero.checkpoint.small import begin, make_step, saved

MEETING = Meeting("test", 1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> epath.Path:
    step = make_step()
    folder = saved(tmp_path_factory.mktemp("found"), step, begin(step), 2)
    shutil.copytree(folder / "2", folder / "3")
    next((folder / "3" / "state").rglob("manifest.ocdbt")).unlink()
    (folder / "5").mkdir()
    return epath.Path(folder)


def test_the_newest_complete_one(folder: epath.Path) -> None:
    with pytest.warns(jzero.CheckpointWarning) as told:
        found = find_step(folder, None, MEETING, "restore()")
    assert found is not None and found.step == 2
    text = str(told[0].message)
    assert "\n  3  " in text and "\n  5  " in text and "\n  2  " not in text


def test_one_that_was_asked_for(folder: epath.Path) -> None:
    found = find_step(folder, 2, MEETING, "restore(2)")
    assert found is not None and found.step == 2
    for step in (3, 4, 5):
        with pytest.raises(jzero.CheckpointError, match="complete steps 2"):
            find_step(folder, step, MEETING, "restore()")


def test_nothing(tmp_path: Path) -> None:
    path = epath.Path(tmp_path)
    assert find_step(path, None, MEETING, "restore()") is None
    with pytest.raises(jzero.CheckpointError, match="no complete step is there"):
        find_step(path, 1, MEETING, "restore(1)")
