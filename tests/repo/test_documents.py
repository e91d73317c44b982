"""The documents speak of what there is: public names, files, targets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import jzero

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARKDOWN = [*DOCUMENTS, ROOT / "BUILD.md"]


def test_public_names_are_documented() -> None:
    text = "\n".join(p.read_text() for p in DOCUMENTS)
    missing = [n for n in jzero.__all__ if not re.search(rf"\b{n}\b", text)]
    assert not missing, "name these in README.md or docs/"


def test_public_names_exist_and_have_docstrings() -> None:
    bare = [n for n in jzero.__all__ if not getattr(jzero, n).__doc__]
    assert not bare


def test_settings_are_documented() -> None:
    text = "\n".join(p.read_text() for p in DOCUMENTS)
    fields = jzero.ZeroConfig.__dataclass_fields__
    missing = [n for n in fields if f"`{n}`" not in text and f"{n}=" not in text]
    assert not missing, "name these settings in README.md or docs/"


def test_code_map_names_every_module_and_nothing_else() -> None:
    build = (ROOT / "BUILD.md").read_text()
    modules = {
        p.relative_to(ROOT).as_posix()
        for p in (ROOT / "jzero").rglob("*.py")
        if p.name != "__init__.py"
    }
    mentioned = set(re.findall(r"`(jzero/[\w/]+\.py)`", build))
    assert not modules - mentioned, "add these to the map in BUILD.md"
    assert not mentioned - modules, "BUILD.md names modules that are gone"


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text())
    local = [t for t in targets if "://" not in t]
    broken = [t for t in local if not (path.parent / t).exists()]
    assert not broken


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda p: p.name)
def test_commands_in_documents_are_targets(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^\.PHONY: (.*)$", makefile, re.M)[0].split())
    asked = set(re.findall(r"`make (\w+)", path.read_text()))
    assert asked <= targets


def test_ci_runs_what_people_run() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "set -euo pipefail" in script
    assert script.rstrip().endswith("exec make test")
