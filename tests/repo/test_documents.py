"""The documents speak of what there is: public names, files, targets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jzero

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARKDOWN = [*DOCUMENTS, ROOT / "BUILD.md"]


def code_of(name: str) -> str:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.S)
    assert blocks
    return blocks[0]


def test_the_ten_lines_of_the_readme_run(capsys: pytest.CaptureFixture[str]) -> None:
    code = code_of("README.md")
    assert len(code.strip().splitlines()) <= 11

    class State(dict[str, Any]):
        params = property(lambda self: self["params"])

    jax.tree_util.register_pytree_node(
        State, lambda s: (list(s.values()), None), lambda _, v: State(params=v[0])
    )

    def train_step(state: State, batch: jax.Array) -> tuple[State, jax.Array]:
        return State(params=state.params - 0.1 * batch.mean()), batch.sum()

    batch = jnp.ones((16, 4))
    names: dict[str, Any] = {
        "train_step": train_step,
        "create_state": lambda rng, batch: State(params=jnp.ones((128, 128))),
        "rng": jax.random.key(0),
        "sample_batch": batch,
        "batch": batch,
        "loader": [batch] * 3,
        "evaluate": lambda state, batch: state.params.mean() + batch.mean(),
        "test_batch": batch,
    }
    exec(code, names)
    assert "128x128" in capsys.readouterr().out
    assert names["params"].shape == (128, 128)
    assert float(names["accuracy"]) == pytest.approx(1.7, abs=1e-5)


def test_how_it_works_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    with jax.numpy_rank_promotion("allow"):
        exec(code_of("docs/how-it-works.md"), names)
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    # The document leaves out the column of memory kinds, which are all "device".
    shown = [[word for word in line if word != "device"] for line in printed]
    document = (ROOT / "docs/how-it-works.md").read_text()
    rows = re.findall(r"^state\['.*$", document, re.M)
    assert len(rows) == 5
    assert not [row for row in rows if row.split() not in shown]
    plan = names["step"].plan(names["state"], names["batch"])
    assert f"{plan.local_bytes / 1024:.2f} KiB" in document
    assert f"instead of {plan.global_bytes / 1024:.2f}" in document


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
        for package in ("jzero", "pallas_kernels")
        for p in (ROOT / package).rglob("*.py")
        if p.name != "__init__.py"
    }
    mentioned = set(re.findall(r"`((?:jzero|pallas_kernels)/[\w/]+\.py)`", build))
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
