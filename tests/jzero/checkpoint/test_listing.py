"""Folders of checkpoints are listed with all that is in them, and nothing is read."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax.numpy as jnp
import pytest

from jzero.checkpoint.listing import list_checkpoints
from jzero.errors import CheckpointError
from tests.jzero.checkpoint.saved_steps import write_foreign, write_step


def test_every_kind_of_step(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_step(run, 2, {"params/w": jnp.ones(1000)})
    write_step(run, 10, {"params/w": jnp.ones(1000)})
    (run / "11").mkdir()
    shutil.copytree(run / "2", run / "12.orbax-checkpoint-tmp")
    write_foreign(run, 3, {"w": jnp.ones(4)}, item="default")
    write_foreign(run, 4, {"w": jnp.ones(4)}, item="one")
    shutil.copytree(run / "4" / "one", run / "4" / "two")
    listed = list_checkpoints(run)
    assert [step.step for step in listed] == [2, 3, 4, 10, 11, 12]
    complete = [step.step for step in listed if step.is_complete]
    assert complete == [2, 3, 10]
    two, three, four, _, eleven, twelve = listed
    assert two.manifest is not None and two.manifest.stage == 3
    files = [path for path in (run / "2").rglob("*") if path.is_file()]
    assert two.size_bytes == pytest.approx(
        sum(p.stat().st_size for p in files), abs=999
    )
    assert three.is_foreign and three.manifest is None and three.size_bytes > 0
    assert "several things" in (four.problem or "")
    assert eleven.size_bytes == 0 and eleven.problem
    assert "broke off" in (twelve.problem or "")
    assert [step.step for step in list_checkpoints(f"{run}@10")] == [10]


def test_one_folder_of_arrays(tmp_path: Path) -> None:
    write_foreign(tmp_path / "b", 1, {"w": jnp.ones(4)})
    shutil.move(tmp_path / "b" / "1" / "state", tmp_path / "c")
    (listed,) = list_checkpoints(tmp_path / "c")
    assert listed.step is None and listed.is_complete and listed.is_foreign


def test_nothing_there(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        list_checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="no step 3"):
        list_checkpoints(f"{run}@3")
