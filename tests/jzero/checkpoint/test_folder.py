"""A folder appears whole or not at all, whatever happens while it is written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jzero.checkpoint.folder import new_folder, telling_of_full_disks, write_file
from jzero.errors import CheckpointError

ROOT = Path(__file__).resolve().parents[3]


def is_ours(name: str) -> bool:
    return name.endswith(".bin")


def make(target: Path, content: bytes = b"new", *, overwrite: bool = False) -> None:
    with new_folder(
        target, needed_bytes=len(content), overwrite=overwrite, is_ours=is_ours
    ) as folder:
        write_file(folder / "a.bin", content)
        assert not (target / "a.bin").exists() or overwrite


def test_it_appears_at_the_end(tmp_path: Path) -> None:
    make(tmp_path / "deep" / "out")
    assert (tmp_path / "deep" / "out" / "a.bin").read_bytes() == b"new"
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["out"]


def test_an_empty_folder_may_be_there(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    make(tmp_path / "out")
    assert (tmp_path / "out" / "a.bin").exists()


def test_an_error_leaves_nothing_new_and_the_old(tmp_path: Path) -> None:
    make(tmp_path / "out", b"old")
    with (
        pytest.raises(KeyboardInterrupt),
        new_folder(
            tmp_path / "out", needed_bytes=0, overwrite=True, is_ours=is_ours
        ) as folder,
    ):
        write_file(folder / "a.bin", b"half")
        raise KeyboardInterrupt
    assert (tmp_path / "out" / "a.bin").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_old_one_is_replaced_when_told(tmp_path: Path) -> None:
    make(tmp_path / "out", b"old")
    with pytest.raises(CheckpointError, match="is there already"):
        make(tmp_path / "out")
    make(tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "a.bin").read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["out", "out.partial"])
def test_what_others_wrote_is_never_removed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=name):
        make(tmp_path / "out", overwrite=True)
    assert (tmp_path / name / "thesis.txt").read_text() == "mine"


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(CheckpointError, match="is a file"):
        make(tmp_path / "out", overwrite=True)


def test_more_than_the_disk_holds(tmp_path: Path) -> None:
    with (
        pytest.raises(CheckpointError, match=f"out needs {2**60} bytes"),
        new_folder(
            tmp_path / "out", needed_bytes=2**60, overwrite=False, is_ours=is_ours
        ),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_errors_of_the_system_have_path_and_bytes(tmp_path: Path) -> None:
    # A device that is always full.
    with (
        pytest.raises(CheckpointError, match=r"full \(7 bytes\) could not.*No space"),
        telling_of_full_disks(Path("/dev/full"), 7),
        open("/dev/full", "wb", buffering=0) as file,
    ):
        file.write(b"content")


WRITER = """
import sys
from pathlib import Path
from jzero.checkpoint.folder import new_folder, write_file
with new_folder(
    Path(sys.argv[1]), needed_bytes=0, overwrite=False, is_ours=lambda name: True
) as folder:
    write_file(folder / "half.bin", b"half")
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_two_at_once_and_one_killed(tmp_path: Path) -> None:
    target = tmp_path / "out"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert writer.stdout is not None and writer.stdin is not None
        assert writer.stdout.readline() == b"ready\n"
        with pytest.raises(CheckpointError, match="another process is writing"):
            make(target)
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate()
    assert not target.exists() and (tmp_path / "out.partial" / "half.bin").exists()
    make(target)
    assert [path.name for path in target.iterdir()] == ["a.bin"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
