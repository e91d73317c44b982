"""Every way to name a step, and an answer to every name that leads nowhere."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import jax.numpy as jnp
import pytest

from jzero.checkpoint.source import find_source, split_reference
from jzero.errors import CheckpointError
from tests.jzero.checkpoint.saved_steps import write_foreign, write_step


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 1, 2 and 10; 11 is empty, 12 is cut short, and 13 broke off."""
    directory = tmp_path_factory.mktemp("runs") / "a"
    for step in (1, 2, 10):
        write_step(directory, step, {"params/w": jnp.ones((4,)) * step})
    (directory / "11").mkdir()
    shutil.copytree(directory / "10", directory / "12")
    data = max((directory / "12" / "state").rglob("d/*"))
    data.write_bytes(data.read_bytes()[:-1])
    shutil.copytree(directory / "10", directory / "13.orbax-checkpoint-tmp")
    return directory


@pytest.mark.parametrize(
    ("reference", "step"),
    [("", 10), ("@1", 1), ("@10", 10), ("/2", 2), ("/2/state", 2)],
)
def test_names_of_complete_steps(runs: Path, reference: str, step: int) -> None:
    found = find_source(f"{runs}{reference}")
    assert found.step == step and found.manifest is not None
    assert found.folder == runs / str(step)
    assert found.arrays_folder == runs / str(step) / "state"


@pytest.mark.parametrize(
    ("reference", "texts"),
    [
        ("@3", ["has no step 3", "10  complete", "11  "]),
        ("@11", ["a@11 is not complete", "10  complete"]),
        ("@12", ["a@12 is not complete", "bytes instead of"]),
        ("@13", ["has no step 13", "13  its save broke off"]),
        ("/12", ["12 is not complete"]),
        ("/nowhere", ["does not exist", "Remedy: name a folder of steps"]),
        ("/1/state/_METADATA", ["is a file, not a folder"]),
        ("/1/state/d", ["is not a checkpoint"]),
    ],
)
def test_names_that_lead_nowhere(runs: Path, reference: str, texts: list[str]) -> None:
    with pytest.raises(CheckpointError) as raised:
        find_source(f"{runs}{reference}")
    for text in texts:
        assert text in str(raised.value)


def test_no_step_is_complete(tmp_path: Path) -> None:
    (tmp_path / "4").mkdir()
    with pytest.raises(CheckpointError, match=r"no complete step:\n  4  "):
        find_source(tmp_path)


def test_a_folder_may_have_an_at_sign(tmp_path: Path) -> None:
    directory = tmp_path / "run@7"
    write_step(directory, 3, {"params/w": jnp.ones(4)})
    assert find_source(directory).step == 3
    assert find_source(f"{directory}@3").step == 3
    assert split_reference(f"{tmp_path / 'nowhere'}@7")[1] == 7


def test_steps_in_a_folder_that_is_called_like_one(tmp_path: Path) -> None:
    write_step(tmp_path / "2026", 3, {"params/w": jnp.ones(4)})
    assert find_source(tmp_path / "2026").step == 3


@pytest.mark.parametrize("item", ["state", "default", "anything"])
@pytest.mark.parametrize("reference", ["", "@5", "/5"])
def test_steps_that_orbax_wrote_alone(
    tmp_path: Path, item: str, reference: str
) -> None:
    write_foreign(tmp_path / "b", 5, {"w": jnp.ones(4)}, item=item)
    found = find_source(f"{tmp_path / 'b'}{reference}")
    assert found.manifest is None and found.step == 5
    assert found.arrays_folder == tmp_path / "b" / "5" / item


def test_arrays_without_a_step(tmp_path: Path) -> None:
    write_foreign(tmp_path / "b", 5, {"w": jnp.ones(4)})
    shutil.move(tmp_path / "b" / "5" / "state", tmp_path / "c")
    found = find_source(tmp_path / "c")
    assert found.step is None and found.folder == found.arrays_folder


def test_two_sets_of_arrays_under_other_names(tmp_path: Path) -> None:
    write_foreign(tmp_path / "b", 5, {"w": jnp.ones(4)}, item="one")
    shutil.copytree(tmp_path / "b" / "5" / "one", tmp_path / "b" / "5" / "two")
    with pytest.raises(CheckpointError, match=r"several things(.|\n)*one(.|\n)*two"):
        find_source(tmp_path / "b")
    assert find_source(tmp_path / "b" / "5" / "two").step == 5


@pytest.mark.skipif(find_spec("s3fs") is not None, reason="s3fs is installed")
def test_remote_paths_say_what_they_need() -> None:
    with pytest.raises(CheckpointError, match=r"s3://bucket/run(.|\n)*s3fs for s3://"):
        find_source("s3://bucket/run@7")
