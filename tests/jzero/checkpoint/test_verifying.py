"""One flipped bit in any file of a step is found, and the file named."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax.numpy as jnp
import pytest
from etils import epath

from jzero.checkpoint.checksums import read_checksums, write_checksums
from jzero.checkpoint.verifying import verify
from jzero.errors import CheckpointError
from tests.jzero.checkpoint.saved_steps import sharded, write_foreign, write_step
from tests.jzero.checkpoint.small import begin, make_step, saved

# Written at the commit, after the sums were taken; they hold no data and no plan.
UNSUMMED = {"_CHECKPOINT_METADATA", "commit_success.txt", "jzero/commit_success.txt"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that the real checkpointer saved."""
    step = make_step()
    return saved(tmp_path_factory.mktemp("run"), step, begin(step), i=7)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def name_of(path: Path) -> str:
    """Returns the name of a file relative to its step."""
    (step,) = (parent for parent in path.parents if parent.name == "7")
    return str(path.relative_to(step))


def test_a_whole_run(whole: Path) -> None:
    (step,) = verify(whole)
    assert step.is_whole and step.step == 7 and step.folder == whole / "7"
    files = [p for p in (whole / "7").rglob("*") if p.is_file()]
    summed = [p for p in files if name_of(p) not in UNSUMMED | {"jzero/checksums.json"}]
    assert step.num_files == len(summed) > 5
    assert step.size_bytes == sum(path.stat().st_size for path in summed)


def test_a_flipped_bit_in_each_file_in_turn(whole: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(whole, copy)
    files = [p for p in (copy / "7").rglob("*") if p.is_file()]
    checked = 0
    for path in files:
        size_bytes = path.stat().st_size
        if name_of(path) in UNSUMMED or not size_bytes:
            continue
        for at in {0, size_bytes // 2, size_bytes - 1}:
            flip(path, at)
            (step,) = verify(copy)
            assert step.problems and not step.is_whole, path
            if path.name != "checksums.json":
                name = str(path.relative_to(copy / "7"))
                assert [problem.name for problem in step.problems] == [name]
            flip(path, at)
        checked += 1
    assert checked > 5 and verify(copy)[0].is_whole


def test_every_changed_byte_of_the_checksums_themselves(
    whole: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(whole, copy)
    path = copy / "7" / "jzero" / "checksums.json"
    for at in range(0, path.stat().st_size, 29):
        flip(path, at)
        assert verify(copy)[0].problems, at
        flip(path, at)


def test_a_record_that_orbax_could_not_read(whole: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(whole, copy)
    record = copy / "7" / "_CHECKPOINT_METADATA"
    record.write_text(record.read_text()[1:])
    (step,) = verify(copy)
    assert [problem.name for problem in step.problems] == [record.name]


def test_files_that_are_gone_or_shorter(whole: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(whole, copy)
    first, second = sorted((copy / "7" / "state").rglob("d/*"))[:2]
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    (step,) = verify(f"{copy}@7")
    assert {problem.name for problem in step.problems} == {
        str(path.relative_to(copy / "7")) for path in (first, second)
    }


def test_every_kind_of_step(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_step(run, 1, {"params/w": jnp.ones(4)})
    (run / "4").mkdir()
    shutil.copytree(run / "1", run / "5.orbax-checkpoint-tmp")
    shutil.copytree(run / "1", run / "6")
    (run / "6" / "jzero" / "checksums.json").unlink()
    write_foreign(run, 8, {"w": sharded(jnp.ones(8), "data")})
    one, four, five, six, eight = verify(run)
    assert one.is_whole
    assert four.problems and not four.has_checksums
    assert not five.is_committed and not five.problems
    assert "no checksums" in six.problems[0].what
    assert not eight.problems and not eight.has_checksums and not eight.is_whole
    # Its arrays were read, which finds files that are gone.
    for path in (run / "8" / "state").rglob("d/*"):
        path.unlink()
    assert verify(f"{run}@8")[0].problems


def test_files_that_are_right_in_a_step_that_is_not(tmp_path: Path) -> None:
    folder = write_step(tmp_path / "run", 1, {"params/w": jnp.ones(4)})
    manifest = folder / "jzero" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99'))
    sums = read_checksums(folder)
    assert sums is not None
    write_checksums(
        folder / "jzero", {name: epath.Path(folder) / name for name in sums}
    )
    (step,) = verify(tmp_path / "run")
    assert not step.is_whole and "format 99" in step.problems[0].what


def test_one_step_by_its_folder_and_bare_arrays(whole: Path, tmp_path: Path) -> None:
    assert verify(whole / "7")[0].is_whole
    write_foreign(tmp_path / "b", 1, {"w": jnp.ones(4)})
    shutil.move(tmp_path / "b" / "1" / "state", tmp_path / "c")
    (step,) = verify(tmp_path / "c")
    assert step.step is None and not step.has_checksums and not step.problems


def test_progress_counts_to_the_end(whole: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    (step,) = verify(whole, progress=lambda *call: calls.append(call))
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)
    assert calls[-1][0] == calls[-1][1] == step.size_bytes
    assert all(name.startswith("7/") for _, _, name in calls)


@pytest.mark.parametrize("reference", ["@9", "/nowhere"])
def test_names_that_lead_nowhere(whole: Path, reference: str) -> None:
    with pytest.raises(CheckpointError):
        verify(f"{whole}{reference}")
