"""Rules about files that no linter knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 400

# Modules without a test file of their own, and where they are tested instead.
UNMIRRORED = {
    "jzero/passes/pipeline.py": "tests of every pass, which run through it",
}

# Test files that belong to a whole folder of modules.
SHARED_TESTS = {
    "tests/jzero/passes/test_table.py",
    "tests/jzero/audit/findings/test_planted.py",
}

PACKAGES = ("jzero", "pallas_kernels")
SOURCE_FOLDERS = (*PACKAGES, "tools", "tests", "examples", "benchmarks")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".cfg", ".txt", ""}
# Folders that belong to one machine and not to the project.
MACHINE_PATH = re.compile(r"(?<![\w.$~-])/(work|root|farm|tmp|home|Users)/\w")
UNFINISHED = re.compile(
    r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b|mark\.xf" r"ail|pytest\.xf" r"ail"
)


def python_files() -> list[Path]:
    return sorted(p for top in SOURCE_FOLDERS for p in (ROOT / top).rglob("*.py"))


def text_files() -> list[Path]:
    top = [
        p
        for p in ROOT.iterdir()
        if p.is_file() and p.suffix in TEXT_SUFFIXES and p.name != ".git"
    ]
    below = [
        p
        for folder in (*SOURCE_FOLDERS, "docs", ".ci")
        for p in (ROOT / folder).rglob("*")
        if p.is_file() and p.suffix in TEXT_SUFFIXES
    ]
    return sorted(top + below)


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def found(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    return [
        f"{named(path)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {named(p): len(p.read_text().splitlines()) for p in python_files()}
    assert len(lengths) > 30
    too_long = {name: n for name, n in lengths.items() if n > MAX_LINES}
    assert not too_long, "split these by what they are about"


def test_every_module_has_its_test_file() -> None:
    modules = {
        named(p)
        for package in PACKAGES
        for p in (ROOT / package).rglob("*.py")
        if p.name != "__init__.py"
    }
    missing = sorted(
        name
        for name in modules - set(UNMIRRORED)
        if not (ROOT / "tests" / name).with_name(f"test_{Path(name).name}").exists()
    )
    assert not missing, "these modules have no test file"
    assert set(UNMIRRORED) <= modules, "no such module any more"


def test_every_test_file_has_its_module() -> None:
    stale = [
        named(p)
        for package in PACKAGES
        for p in (ROOT / "tests" / package).rglob("test_*.py")
        if named(p) not in SHARED_TESTS
        and not (
            ROOT / p.relative_to(ROOT / "tests").with_name(p.name.removeprefix("test_"))
        ).exists()
    ]
    assert not stale, "these test files mirror no module"


def test_no_file_names_a_folder_of_one_machine() -> None:
    assert not found(MACHINE_PATH, text_files())


def test_nothing_is_left_unfinished() -> None:
    assert not found(UNFINISHED, python_files())


def test_private_jax_stays_in_compat() -> None:
    private = re.compile(r"\bjax\._src\b")
    files = [
        p
        for p in python_files()
        if (ROOT / "jzero" / "compat") not in p.parents and p != Path(__file__)
    ]
    assert not found(private, files)


@pytest.mark.parametrize("name", ["utils.py", "common.py", "helpers.py", "misc.py"])
def test_no_module_is_a_drawer(name: str) -> None:
    assert name not in {p.name for p in python_files()}
