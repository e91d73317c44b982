"""The tables of checkpoints hold what the records say, and names as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etils import epath
from rich.console import Console

from jzero.checkpoint import CheckedStep, Consolidated, Diff, LeafDiff, ListedStep
from jzero.checkpoint.checksums import FileProblem
from jzero.checkpoint.manifest import Manifest, SavedLeaf
from jzero.cli.show_ckpt import (
    checked_table,
    consolidated_text,
    diff_table,
    leaves_table,
    steps_table,
)

# What rich would take for a style.
PATH = "params/[bold]/w"
MANIFEST = Manifest(
    step=7,
    versions={"jzero": "1.2.3"},
    stage=2,
    mesh_axes={"data": 4, "model": 2},
    num_devices=8,
    num_processes=2,
    time_utc="2026-01-02T03:04:05+00:00",
    leaves=(
        SavedLeaf(
            path=PATH,
            keys=("params", "[bold]", "w"),
            shape=(4, 2),
            dtype="bfloat16",
            role="parameter",
            spec=("data", None),
            memory_kind="pinned_host",
        ),
        SavedLeaf(path="head", keys=("head",), shape=(), dtype="float32"),
    ),
    aliases={"head": PATH},
)


def text_of(table: Any, width: int = 200) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return " ".join(captured.get().split())


def listed(step: int, **changes: Any) -> ListedStep:
    usual: dict[str, Any] = {"problem": None, "size_bytes": 0, "manifest": None}
    folder = epath.Path(f"runs/a/{step}")
    return ListedStep(folder=folder, step=step, **{**usual, **changes})


def test_steps() -> None:
    steps = [
        listed(7, size_bytes=1_105_200_000, manifest=MANIFEST),
        listed(8, problem="[x] is missing"),
        listed(9, is_foreign=True),
    ]
    shown = text_of(steps_table("runs/a", steps))
    assert "7 complete 1.11 GB 2 8 (data 4, model 2)" in shown
    assert "2026-01-02 03:04:05 jzero 1.2.3" in shown
    assert "8 INCOMPLETE: [x] is missing" in shown
    assert "9 complete, by Orbax without jzero" in shown
    # On a narrow terminal nothing is cut off.
    assert "…" not in text_of(steps_table("runs/a", steps), width=80)


def test_leaves() -> None:
    shown = text_of(leaves_table(MANIFEST))
    assert f"{PATH} bfloat16 4x2 parameter data, - pinned_host" in shown
    assert f"head float32 scalar other device {PATH}" in shown


def test_what_was_written() -> None:
    done = Consolidated(
        folder=Path("out"),
        files=("a", "b"),
        step=None,
        num_tensors=3,
        size_bytes=48,
        aliases={"head": PATH},
    )
    shown = text_of(consolidated_text(done))
    assert shown == f"out: 3 tensors, 48 B, in 2 files head is {PATH}"


def test_differences() -> None:
    leaf = LeafDiff(
        path=PATH, kind="values", first="f[1]", second="f[1]", num_elems=3, max_abs=1e-9
    )
    gone = LeafDiff(path="x", kind="missing", first="", second="int8[2]")
    diff = Diff(names=("runs/a@1", "runs/b@2"), num_leaves=5, leaves=(leaf, gone))
    shown = text_of(diff_table(diff))
    assert "2 of 5 leaves differ" in shown and "runs/a@1 runs/b@2" in shown
    assert f"{PATH} values 1e-09 3 f[1] f[1] x missing int8[2]" in shown


def test_checked_steps() -> None:
    def checked(number: int, *problems: FileProblem, **changes: bool) -> CheckedStep:
        usual = {"is_committed": True, "has_checksums": True}
        return CheckedStep(
            folder=epath.Path(f"runs/a/{number}"),
            step=number,
            num_files=3,
            size_bytes=48,
            problems=problems,
            **{**usual, **changes},
        )

    steps = [
        checked(1),
        checked(2, FileProblem(name="state/d/[x]", what="is missing")),
        checked(3, is_committed=False),
        checked(4, has_checksums=False),
    ]
    shown = text_of(checked_table("runs/a", steps))
    assert "1 3 48 B every byte as it was written" in shown
    assert "2 3 48 B DAMAGED runs/a/2/state/d/[x] is missing" in shown
    assert "3 3 48 B its save broke off" in shown
    assert "4 3 48 B readable; it has no checksums" in shown
