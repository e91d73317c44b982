"""Arrays of every layout that Orbax writes are opened and read piece by piece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath

from jzero.checkpoint.store import open_arrays, pieces_of, read_ahead
from jzero.errors import CheckpointError
from tests.jzero.checkpoint.saved_steps import sharded, write_foreign


def read(folder: Path, path: str, max_bytes: int = 64) -> np.ndarray:
    stored = open_arrays(epath.Path(folder))[path]
    whole = np.empty(stored.shape, stored.dtype)
    pieces = pieces_of((stored,), max_bytes=max_bytes)
    for piece, (values,) in read_ahead(pieces, max_bytes=2 * max_bytes):
        assert values.shape == piece.slab.shape
        whole[piece.slab.index] = values
    return whole


@pytest.mark.parametrize("use_ocdbt", [True, False])
@pytest.mark.parametrize("use_zarr3", [True, False])
def test_layouts_of_orbax(tmp_path: Path, use_ocdbt: bool, use_zarr3: bool) -> None:
    values = np.arange(96, dtype="float32").reshape(16, 6)
    tree = {"a": {"w": sharded(values, "data")}, "b": [np.int32(3), {"c": None}]}
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=use_ocdbt, use_zarr3=use_zarr3)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(tmp_path / "x", ocp.args.PyTreeSave(tree))
    assert list(open_arrays(epath.Path(tmp_path / "x"))) == ["a/w", "b/0"]
    np.testing.assert_array_equal(read(tmp_path / "x", "a/w"), values)
    assert read(tmp_path / "x", "b/0") == 3


def test_what_is_known_of_an_array(run: Path) -> None:
    arrays = open_arrays(epath.Path(run / "100" / "state"))
    rows = arrays["params/rows"]
    assert rows.shape == (16, 24) and rows.dtype == np.float32
    assert rows.chunk == (2, 24) and rows.size_bytes == 16 * 24 * 4
    assert arrays["params/scalar"].chunk == ()


def test_keys_that_orbax_typed(tmp_path: Path) -> None:
    keys = jax.random.split(jax.random.key(0, impl="rbg"), 2)
    write_foreign(tmp_path, 1, {"rng": keys})
    stored = open_arrays(epath.Path(tmp_path / "1" / "state"))["rng"]
    assert stored.key_impl == "rbg" and stored.shape == (2, 4)


def test_no_more_is_read_ahead_than_allowed(run: Path) -> None:
    stored = open_arrays(epath.Path(run / "100" / "state"))["params/rows"]
    asked: list[int] = []

    def pieces() -> Any:
        for piece in pieces_of((stored,), max_bytes=192):
            asked.append(piece.size_bytes)
            yield piece

    taken = 0
    for piece, _ in read_ahead(pieces(), max_bytes=400):
        # The one that did not fit was asked for, and has not been read.
        assert sum(asked) - taken <= 400 + piece.size_bytes
        taken += piece.size_bytes
    assert taken == stored.size_bytes and len(asked) == 8


def test_lost_chunks_are_an_error_and_not_zeros(tmp_path: Path) -> None:
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False)
    with ocp.Checkpointer(handler) as checkpointer:
        tree = {"w": sharded(np.ones((16, 6), "float32"), "data")}
        checkpointer.save(tmp_path / "x", ocp.args.PyTreeSave(tree))
    (tmp_path / "x" / "w" / "3.0").unlink()
    with pytest.raises(CheckpointError, match="w cannot be read"):
        read(tmp_path / "x", "w")


@pytest.mark.parametrize("content", [None, "{", "{}", "[]"])
def test_folders_of_something_else(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "_METADATA").write_text(content)
    with pytest.raises(CheckpointError, match="no arrays of Orbax"):
        open_arrays(epath.Path(tmp_path))


def test_arrays_that_are_gone(run: Path, tmp_path: Path) -> None:
    about = (run / "100" / "state" / "_METADATA").read_text()
    (tmp_path / "_METADATA").write_text(about)
    with pytest.raises(
        CheckpointError, match=r"complex cannot be opened: .* does not exist$"
    ):
        open_arrays(epath.Path(tmp_path))
