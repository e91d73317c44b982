"""The manifest says the same after a trip through its file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import jzero
from jzero.checkpoint.manifest import (
    FORMAT,
    Manifest,
    SavedLeaf,
    join_path,
    manifest_path,
    read_manifest,
)

LEAVES = (
    SavedLeaf(
        path="params/a~1b",
        keys=("params", "a/b"),
        shape=(4, 6),
        dtype="bfloat16",
        role="parameter",
        spec=(("data", "model"), None),
        memory_kind="pinned_host",
    ),
    SavedLeaf(path="key", keys=("key",), shape=(), dtype="key<fry>", key_impl="fry"),
    SavedLeaf(path="empty", keys=("empty",), shape=(0, 3), dtype="float16"),
    SavedLeaf(path="tied", keys=("tied",), shape=(4, 6), dtype="bfloat16"),
)
MANIFEST = Manifest(
    step=12,
    versions={"jax": "0.12"},
    stage=3,
    mesh_axes={"data": 4, "model": 2},
    num_devices=8,
    num_processes=2,
    time_utc="2026-01-01T00:00:00+00:00",
    leaves=LEAVES,
    aliases={"tied": "params/a~1b"},
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = manifest_path(tmp_path)
    path.parent.mkdir()
    path.write_text(MANIFEST.to_json())
    assert read_manifest(tmp_path) == MANIFEST
    assert MANIFEST.leaf("key") == LEAVES[1]
    assert MANIFEST.leaf("other") is None


def test_only_own_arrays_with_elements_are_stored() -> None:
    assert [leaf.path for leaf in MANIFEST.stored] == ["params/a~1b", "key"]
    assert [leaf.is_key for leaf in MANIFEST.stored] == [False, True]
    bare = SavedLeaf(path="", keys=(), shape=(2,), dtype="float32")
    assert bare.stored_name == "value"


def test_paths_never_collide() -> None:
    assert join_path(["a/b", "c"]) != join_path(["a", "b/c"])
    assert join_path(["a~1b"]) != join_path(["a/b"])


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "not a manifest"),
        ("[]", "not a manifest"),
        ('{"format": 1}', "not a manifest"),
        (replace(MANIFEST, format=FORMAT + 1).to_json(), "newer jzero"),
    ],
)
def test_what_is_no_manifest_is_refused(text: str, part: str) -> None:
    with pytest.raises(jzero.CheckpointError, match=part):
        Manifest.from_json(text)


def test_a_folder_without_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(jzero.CheckpointError, match="holds no manifest"):
        read_manifest(tmp_path)
