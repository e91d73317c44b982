"""What a manifest says and what a store holds are joined, or found to disagree."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from jzero.checkpoint.leaves import open_leaves
from jzero.checkpoint.source import find_source
from jzero.errors import CheckpointError
from tests.jzero.checkpoint.saved_steps import ALIASES, role_of, write_foreign


def test_each_leaf_of_the_manifest(run: Path, leaves: dict[str, Any]) -> None:
    stored = open_leaves(find_source(run))
    assert list(stored.leaves) == list(leaves) and stored.aliases == ALIASES
    for path, leaf in leaves.items():
        found = stored.leaves[path]
        assert found.shape == leaf.shape and found.dtype == str(leaf.dtype)
        assert found.role == role_of(path)
        assert (found.array is None) == (leaf.size == 0)
    assert stored.leaves["params/a.b/c~1d"].keys == ("params", "a.b", "c/d")
    assert stored.leaves["rngs"].key_impl == "rbg"
    assert stored.leaves["params/empty"].size_bytes == 0


def test_leaves_that_nobody_described(tmp_path: Path, leaves: dict[str, Any]) -> None:
    tree = {"a": [{"b/c": jnp.ones((2, 3))}], "rng": leaves["rngs"]}
    write_foreign(tmp_path, 1, tree)
    found = open_leaves(find_source(tmp_path)).leaves
    assert list(found) == ["a/0/b~1c", "rng"]
    assert found["a/0/b~1c"].keys == ("a", "0", "b/c")
    assert found["a/0/b~1c"].role is None
    assert found["rng"].shape == (3,) and found["rng"].key_impl == "rbg"


def test_arrays_that_are_not_as_described(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "100", tmp_path / "a" / "100")
    path = tmp_path / "a" / "100" / "jzero" / "manifest.json"
    text = path.read_text()
    # Of the same length, so that the step still looks complete.
    text = text.replace('"path": "params/rows"', '"path": "params/zows"')
    before, at, after = text.partition('"path": "params/cols"')
    path.write_text(before + at + after.replace("5,", "9,", 1))
    with pytest.raises(CheckpointError) as raised:
        open_leaves(find_source(tmp_path / "a"))
    assert "params/zows  is missing" in str(raised.value)
    assert "params/cols  has (5, 16) instead of (9, 16)" in str(raised.value)
