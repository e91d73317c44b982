"""Consolidated files come back as a dict or into a tree, where the tree lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from jzero.checkpoint.consolidating import consolidate
from jzero.checkpoint.loading import load_consolidated
from jzero.errors import CheckpointError, MismatchError
from tests.jzero.checkpoint.saved_steps import sharded, write_step
from tests.jzero.checkpoint.small import (
    assert_same,
    begin,
    create,
    make_step,
    saved,
    whole,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A state that the real checkpointer saved, whole, and consolidated."""
    folder = tmp_path_factory.mktemp("trained")
    step = make_step()
    state = begin(step)
    saved(folder / "run", step, state, i=7)
    out = consolidate(folder / "run", folder / "out", what="all").folder
    return out, state, whole(state)


def test_a_whole_training_state(trained: tuple[Path, Any, Any]) -> None:
    out, state, expected = trained
    loaded = load_consolidated(out, state)
    assert_same(loaded, expected)
    for got, leaf in zip(jax.tree.leaves(loaded), jax.tree.leaves(state), strict=True):
        assert got.sharding == leaf.sharding


def test_into_shapes_alone(trained: tuple[Path, Any, Any]) -> None:
    out, _, expected = trained
    assert_same(load_consolidated(out, jax.eval_shape(create)), expected)


def test_into_numpy(tmp_path: Path) -> None:
    write_step(tmp_path / "run", 1, {"params/w": jnp.arange(8.0)})
    out = consolidate(tmp_path / "run", tmp_path / "out").folder
    loaded = load_consolidated(out, {"params": {"w": np.zeros(8, "float32")}})
    assert type(loaded["params"]["w"]) is np.ndarray
    loaded["params"]["w"][0] = 1.0  # a copy, not the file
    assert load_consolidated(out)["params/w"][0] == 0.0


@pytest.mark.parametrize("separator", ["/", "."])
def test_names_follow_the_files(tmp_path: Path, separator: Any) -> None:
    write_step(tmp_path / "run", 1, {"params/a~1b/w": jnp.arange(8.0)})
    done = consolidate(tmp_path / "run", tmp_path / "out", separator=separator)
    like = {"params": {"a/b": {"w": sharded(jnp.zeros(8), "data")}}}
    loaded = load_consolidated(done.folder, like)
    np.testing.assert_array_equal(loaded["params"]["a/b"]["w"], np.arange(8.0))
    # A single file says as much as the folder.
    file = load_consolidated(done.folder / "model.safetensors", like)
    assert_same(file, loaded)


def test_each_device_reads_its_part(tmp_path: Path) -> None:
    values = np.arange(64.0, dtype="float32").reshape(16, 4)
    write_step(tmp_path / "run", 1, {"params/w": jnp.asarray(values)})
    out = consolidate(tmp_path / "run", tmp_path / "out").folder
    like = {"params": {"w": sharded(jnp.zeros((16, 4)), "data")}}
    loaded = load_consolidated(out, like)["params"]["w"]
    for shard in loaded.addressable_shards:
        assert shard.data.shape == (2, 4)
        np.testing.assert_array_equal(shard.data, values[shard.index])


def test_all_that_does_not_fit_is_listed(trained: tuple[Path, Any, Any]) -> None:
    out, _, _ = trained
    like = {
        "params": {"up": jnp.zeros((24, 8))},
        "half": jnp.zeros((8, 8), "float16"),
        "key": jnp.zeros(2, "uint32"),
        "scale": jax.random.key(0),
        "more": jnp.zeros(3),
    }
    with pytest.raises(MismatchError) as raised:
        load_consolidated(out, like)
    text = str(raised.value)
    for row in (
        r"params/up    has another shape: (24, 16) -> (24, 8)",
        r"half         has another dtype: bfloat16 -> float16",
        r"key          has another dtype: key<threefry2x32> -> uint32",
        r"scale        has another dtype: float32 -> key<fry>",
        r"more         is not in the files",
        r"table        is not in the template",
    ):
        assert " ".join(row.split()) in " ".join(text.split())


def test_a_part_and_a_cast_when_asked(trained: tuple[Path, Any, Any]) -> None:
    out, _, expected = trained
    like = {"half": jnp.zeros((8, 8))}
    loaded = load_consolidated(out, like, cast=True, strict=False)["half"]
    assert loaded.dtype == jnp.float32
    np.testing.assert_array_equal(loaded, expected.half.astype("float32"))


def test_files_that_the_package_wrote(tmp_path: Path) -> None:
    save_file({"a/w": np.arange(3.0)}, tmp_path / "x.safetensors")
    assert load_consolidated(tmp_path / "x.safetensors")["a/w"].tolist() == [0, 1, 2]


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no model\.safetensors\.index"):
        load_consolidated(tmp_path)
    leaves = {"params/v": jnp.ones(8), "params/w": jnp.ones(8)}
    write_step(tmp_path / "run", 1, leaves)
    done = consolidate(tmp_path / "run", tmp_path / "out", max_shard_bytes=40)
    (done.folder / done.files[0]).unlink()
    with pytest.raises(CheckpointError, match=f"lacks files(.|\n)*{done.files[0]}"):
        load_consolidated(done.folder)
    (done.folder / "model.safetensors.index.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_consolidated(done.folder)


def test_random_keys_of_another_number(run: Path, tmp_path: Path, leaves: Any) -> None:
    done = consolidate(run, tmp_path / "out", what="all", only=["*rng*"])
    like = {"rng": leaves["rng"], "rngs": leaves["rngs"], "no_rngs": leaves["no_rngs"]}
    assert_same(load_consolidated(done.folder, like), like)
    with pytest.raises(MismatchError) as raised:
        load_consolidated(done.folder, {**like, "rngs": like["rngs"][0]})
    assert "rngs  has another shape: (3, 4) -> ()" in str(raised.value)
    many = jax.random.split(like["rngs"][0], (3, 4))
    with pytest.raises(MismatchError, match="rngs  has another shape"):
        load_consolidated(done.folder, {**like, "rngs": many})
    with pytest.raises(MismatchError, match="rngs  has another dtype: key<rbg>"):
        load_consolidated(done.folder, {**like, "rngs": jax.random.key(0)})
