"""Every changed byte, length and missing file is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from etils import epath

import jzero
from jzero.checkpoint.checksums import (
    check_files,
    checksum_path,
    files_below,
    read_checksums,
    write_checksums,
)

NAMES = ("state/a", "state/d/b", "jzero/manifest.json")


@pytest.fixture
def step(tmp_path: Path) -> Path:
    for k, name in enumerate(NAMES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(range(256)) * (k + 1))
    files = dict(files_below(epath.Path(tmp_path)))
    assert set(files) == set(NAMES)
    write_checksums(tmp_path / "jzero", files)
    return tmp_path


def problems(step: Path, *, sizes_only: bool = False) -> dict[str, str]:
    sums = read_checksums(step)
    assert sums is not None
    return {p.name: p.what for p in check_files(step, sums, sizes_only=sizes_only)}


def test_nothing_is_wrong_with_what_was_written(step: Path) -> None:
    assert problems(step) == {}
    (step / "_CHECKPOINT_METADATA").write_text("written later")
    assert problems(step) == {}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", (0, 100, 255))
def test_any_flipped_bit_is_found(step: Path, name: str, place: int) -> None:
    content = bytearray((step / name).read_bytes())
    content[place] ^= 1
    (step / name).write_bytes(content)
    assert list(problems(step)) == [name]
    assert problems(step, sizes_only=True) == {}


def test_missing_and_short_files_are_found_by_their_lengths(step: Path) -> None:
    (step / NAMES[0]).unlink()
    (step / NAMES[1]).write_bytes(b"short")
    assert problems(step, sizes_only=True) == {
        "state/a": "is missing",
        "state/d/b": "has 5 bytes instead of 512",
    }


def test_a_step_without_any_is_told_from_one_with_broken_ones(step: Path) -> None:
    checksum_path(step).write_text("{")
    with pytest.raises(jzero.CheckpointError, match="holds no checksums"):
        read_checksums(step)
    checksum_path(step).unlink()
    assert read_checksums(step) is None
