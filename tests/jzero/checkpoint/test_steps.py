"""Only steps that were written to their end count."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import jzero
from jzero.checkpoint.steps import latest_complete, look_at, scan_steps, step_folder
from tests.jzero.checkpoint.small import begin, make_step, saved


@pytest.fixture(scope="module")
def one_step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    step = make_step()
    return saved(tmp_path_factory.mktemp("one"), step, begin(step), 2)


@pytest.fixture
def folder(one_step: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(one_step, copy)
    return copy


def test_a_saved_step_is_complete(folder: Path) -> None:
    (found,) = scan_steps(folder)
    assert found.is_complete and found.step == 2
    assert found.manifest is not None and found.manifest.step == 2
    assert latest_complete(folder) == found
    assert scan_steps(folder / "nowhere") == ()
    assert latest_complete(folder / "nowhere") is None


def test_what_only_looks_like_a_step_is_not(folder: Path) -> None:
    (folder / "3.orbax-checkpoint-tmp").mkdir()
    (folder / "4").mkdir()
    (folder / "notes").mkdir()
    (folder / "99").write_text("a file")
    found = {s.folder.name: s.problem for s in scan_steps(folder)}
    assert list(found) == ["2", "3.orbax-checkpoint-tmp", "4"]
    assert found["2"] is None
    assert found["3.orbax-checkpoint-tmp"] == "its save broke off"
    assert "no manifest" in (found["4"] or "")
    newest = latest_complete(folder)
    assert newest is not None and newest.step == 2


def files_of(step: Path) -> list[str]:
    return [str(p.relative_to(step)) for p in step.rglob("*") if p.is_file()]


def test_a_step_with_any_file_cut_short_or_gone_is_not_complete(folder: Path) -> None:
    for name in files_of(folder / "2"):
        path = folder / "2" / name
        content = path.read_bytes()
        if path.name in ("_CHECKPOINT_METADATA", "commit_success.txt"):
            continue
        path.write_bytes(content[:-1])
        assert not look_at(folder / "2").is_complete, name
        path.unlink()
        assert not look_at(folder / "2").is_complete, name
        path.write_bytes(content)
    assert look_at(folder / "2").is_complete


def test_other_folders_are_refused(folder: Path) -> None:
    with pytest.raises(jzero.CheckpointError, match="not the folder of a step"):
        look_at(folder)
    assert look_at(step_folder(folder, 7)).problem == "there is no such folder"
