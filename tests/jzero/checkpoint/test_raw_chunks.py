"""Parts of chunks come out of the store with the right numbers, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts
from etils import epath

from jzero.checkpoint import raw_chunks
from jzero.checkpoint.raw_chunks import find_raw_chunks
from jzero.checkpoint.slabs import Slab
from jzero.checkpoint.store import StoredArray, open_arrays
from tests.jzero.checkpoint.saved_steps import sharded


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of tests are small."""
    monkeypatch.setattr(raw_chunks, "_LEAST_BYTES", 0)


def stored(folder: Path, values: Any, **settings: Any) -> StoredArray:
    settings = {"use_compression": False} | settings
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**settings)) as orbax:
        orbax.save(folder / "x", ocp.args.PyTreeSave({"w": values}))
    return open_arrays(epath.Path(folder / "x"))["w"]


@pytest.mark.parametrize("use_ocdbt", [True, False])
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "int16", "bool", "float8_e5m2"]
)
def test_runs_within_a_chunk(tmp_path: Path, dtype: str, use_ocdbt: bool) -> None:
    values = np.arange(12 * 6 * 5).reshape(12, 6, 5) % 7
    values = values.astype(getattr(ml_dtypes, dtype, dtype))
    array = stored(tmp_path, sharded(values), use_ocdbt=use_ocdbt)
    assert array.raw is not None and array.chunk == (12, 6, 5)
    for start, shape in (
        ((3, 0, 0), (4, 6, 5)),
        ((11, 2, 0), (1, 3, 5)),
        ((0, 5, 1), (1, 1, 3)),
    ):
        slab = Slab(start=start, shape=shape)
        run = array.raw.read(slab)
        assert run is not None
        np.testing.assert_array_equal(run.result(), values[slab.index])
        np.testing.assert_array_equal(array.read(slab).result(), values[slab.index])


def test_of_several_chunks_the_right_one(tmp_path: Path) -> None:
    values = np.arange(16 * 24, dtype=np.float32).reshape(16, 24)
    array = stored(tmp_path, sharded(jnp.asarray(values), None, "data"))
    assert array.raw is not None and array.chunk == (16, 3)
    slab = Slab(start=(5, 9), shape=(4, 3))
    run = array.raw.read(slab)
    assert run is not None
    np.testing.assert_array_equal(run.result(), values[5:9, 9:12])


def test_boxes_that_are_no_runs_are_left_to_the_store(tmp_path: Path) -> None:
    array = stored(tmp_path, sharded(jnp.ones((16, 24)), "data"))
    assert array.raw is not None and array.chunk == (2, 24)
    for start, shape in (
        ((0, 0), (2, 24)),  # a whole chunk
        ((0, 0), (2, 12)),  # two runs
        ((1, 0), (2, 24)),  # two chunks
    ):
        assert array.raw.read(Slab(start=start, shape=shape)) is None
        assert array.read(Slab(start=start, shape=shape)).result().shape == shape


def test_chunks_that_are_encoded_are_left_alone(tmp_path: Path) -> None:
    ones = jnp.ones((8, 8))
    assert stored(tmp_path / "1", ones, use_compression=True).raw is None
    assert stored(tmp_path / "2", ones, use_zarr3=True).raw is None
    assert stored(tmp_path / "3", jnp.ones(8, "int4")).raw is None


@pytest.mark.parametrize(
    "layout",
    [
        {"dtype": ">f4", "order": "C", "shape": [8, 8], "chunks": [8, 8]},
        {"dtype": "<f4", "order": "F", "shape": [8, 8], "chunks": [8, 8]},
        {"dtype": "<f4", "order": "C", "shape": [8, 8], "chunks": [8, 5]},
    ],
)
def test_other_orders_are_left_alone(tmp_path: Path, layout: dict[str, Any]) -> None:
    kvstore = {"driver": "file", "path": f"{tmp_path}/"}
    metadata = {"compressor": None, "filters": None, **layout}
    spec = {"driver": "zarr", "kvstore": kvstore, "metadata": metadata}
    array = ts.open(spec, create=True).result()
    assert find_raw_chunks(array) is None


def test_a_chunk_that_is_gone(tmp_path: Path) -> None:
    array = stored(tmp_path, jnp.ones((16, 6)), use_ocdbt=False)
    (tmp_path / "x" / "w" / "0.0").unlink()
    with pytest.raises(ValueError, match="missing or short"):
        array.read(Slab(start=(3, 0), shape=(2, 6))).result()


def test_small_chunks_are_not_worth_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_chunks, "_LEAST_BYTES", 1000)
    assert stored(tmp_path, jnp.ones((8, 8))).raw is None
