"""Checkpoints of several processes: each writes its part, any number reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.multiprocess import kill_checkpoints, launch

WORKER = Path(__file__).with_name("checkpoint_worker.py")


def run(case: str, num_processes: int, folder: Path) -> list[dict[str, Any]]:
    return launch.run(WORKER, case, num_processes, str(folder))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A folder that two processes saved to, and what they saw."""
    folder = tmp_path_factory.mktemp("saved")
    return folder, run("save", 2, folder)


@pytest.mark.parametrize("num_processes", (1, 4))
def test_any_number_of_processes_restores(saved: Any, num_processes: int) -> None:
    folder, seen = saved
    found = run("restore", num_processes, folder)
    assert len({f["digest"] for f in found}) == 1
    for entry in found:
        assert entry["digest"] == seen[0]["digest"]
        assert entry["start"] == 3
        assert entry["next"] == pytest.approx(seen[0]["next"], rel=1e-6)
        assert "saved by 2 processes" in entry["position"]


def test_each_process_finds_its_own_position(saved: Any) -> None:
    positions = [seen["position"] for seen in saved[1]]
    assert positions == [{"next": 3, "process": 0}, {"next": 3, "process": 1}]


def test_each_array_is_written_once(saved: Any) -> None:
    """Two processes hold every replicated leaf; the files do not."""
    folder, seen = saved
    size_bytes = seen[0]["bytes"]
    files = [p for p in (folder / "2" / "state").rglob("d/*") if p.is_file()]
    written_bytes = sum(p.stat().st_size for p in files)
    assert size_bytes <= written_bytes < 1.5 * size_bytes + 20_000


def test_one_that_saves_alone_is_told_so(tmp_path: Path) -> None:
    first, second = run("one_alone", 2, tmp_path)
    for part in ("waited 3 s", "Checkpointer.save(1)", "Remedy"):
        assert part in first["error"]
    assert second["error"] == ""
    for seen in (first, second):
        assert seen["is_bounded"]
        assert seen["latest"] == 0


@pytest.mark.parametrize(("num_processes", "num_kills"), [(1, 3), (2, 2)])
def test_killed_at_any_moment(
    tmp_path: Path, num_processes: int, num_kills: int
) -> None:
    restored = kill_checkpoints.run(num_kills, num_processes, tmp_path / "steps")
    assert len(restored) == num_kills
    assert restored == sorted(restored)
