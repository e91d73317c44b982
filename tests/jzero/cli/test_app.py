"""The command line, as a person uses it; once in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jzero.cli.app import main
from tests.needs import needs_compiler

SMALL = [
    "benchmarks/llama.py:build",
    *("--set", "width=128", "--set", "inner=256", "--set", "heads=2"),
    *("--set", "layers=2", "--set", "vocab=512", "--set", "length=128"),
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "140", "TERM": "dumb", "NO_COLOR": "1"}
    env.pop("XLA_FLAGS", None)
    return subprocess.run(
        [sys.executable, "-m", "jzero", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=env,
        timeout=300,
    )


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal as wide as the tables."""
    monkeypatch.setenv("COLUMNS", "140")


@needs_compiler
def test_plan_of_one_stage_with_its_report(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    where = ("--pod", "h100:1x8", "--offload", "optimizer=host")
    done = run("plan", *SMALL, *where, "--leaves", "--out", str(out))
    assert done.returncode == 0, done.stderr
    for text in (
        "not here: nothing ran",
        "device peak",
        "state.params",
        "reduce-scatter",
        "optimizer, in host memory",
        " host ",
    ):
        assert text in done.stdout
    (record,) = json.loads(out.read_text())
    assert record["pod"] == "h100:1x8" and record["stage"] == 3
    assert record["num_devices"] == 8 and record["findings"] == []
    assert record["memory"]["host_peak_bytes"] > 0
    link = record["host_traffic"]
    assert link["to_device_bytes"] == link["to_host_bytes"] > 0


@needs_compiler
def test_compare_stages_into_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wide: None
) -> None:
    out = tmp_path / "plan.html"
    arguments = ("plan", *SMALL, "--pod", "h100:1x8", "--compare", "--out", str(out))
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert not stopped.value.code
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines() if "h100:1x8" in line]
    assert [row[1] for row in rows] == ["0", "1", "2", "3"]
    assert out.read_text().startswith("<!")


@needs_compiler
def test_fit_prints_the_line_of_python(
    capsys: pytest.CaptureFixture[str], wide: None
) -> None:
    limits = ("--hbm", "40MB", "--max-compiles", "4")
    with pytest.raises(SystemExit) as stopped:
        main(("fit", *SMALL, "--pod", "h100:1x8", *limits))
    assert not stopped.value.code
    printed = capsys.readouterr().out
    assert "jzero.shard_train_step(step_fn, stage=" in printed
    assert "# step_fn from build(remat=" in printed
    assert "<-" in printed


def test_fit_says_by_how_much_it_misses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(("fit", *SMALL, "--pod", "h100:1x8", "--hbm", "1kB"))
    said = capsys.readouterr().out
    assert stopped.value.code == 1
    assert "Nothing fits" in said and "What would" in said


@pytest.mark.parametrize(
    ("arguments", "text"),
    (
        (("plan", *SMALL, "--pod", "h900:1x8"), "Unknown"),
        (("plan", "nowhere.py:build", "--pod", "h100:1x8"), "no file nowhere.py"),
        (("plan", *SMALL, "--pod", "h100:1x8", "--set", "x"), "not name=value"),
        (("plan", *SMALL, "--pod", "h100:1x8", "--out", "a.txt"), "neither .html nor"),
        (("plan", *SMALL, "--pod", "h100:1x8", "--out", "no/a.html"), "no folder no"),
        (("plan", *SMALL, "--pod", "h100:1x8", "--stage", "4"), "no stage 4"),
        (("plan", *SMALL, "--pod", "h100:1x8", "--config", "x=1"), "not among axis"),
        (("plan", *SMALL, "--pod", "h100:1x8", "--offload", "x=1"), "among optimizer"),
        (("fit", *SMALL, "--pod", "h100:1x8,h100:2x8"), "one pod"),
        (("fit", *SMALL, "--pod", "h100:1x8", "--hbm", "much"), "hbm"),
    ),
)
def test_mistakes_are_told_without_a_traceback(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert stopped.value.code and text in said and "Traceback" not in said
