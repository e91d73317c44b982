"""Large arrays are cut, without slivers; Orbax cuts as foretold."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath

from jzero.checkpoint import saving
from jzero.checkpoint.chunks import CHUNK_BYTES, cut_shape, is_worth_cutting
from jzero.checkpoint.store import open_arrays
from tests.jzero.checkpoint.saved_steps import sharded

SHAPES = ((48, 40), (40, 48), (7, 96, 5), (50, 36), (128,), (64, 24))


@pytest.mark.parametrize("spec", [None, ("data",), (None, "data")])
def test_orbax_cuts_as_foretold(
    tmp_path: Path, spec: tuple[str | None, ...] | None
) -> None:
    """Arrays of one device, and arrays that are split along one dim."""
    arrays = {}
    for shape in SHAPES:
        name = "x".join(map(str, shape))
        if spec is None:
            arrays[name] = jnp.ones(shape)
        elif len(shape) >= len(spec) and shape[len(spec) - 1] % 8 == 0:
            arrays[name] = sharded(jnp.ones(shape), *spec)
    handler = ocp.PyTreeCheckpointHandler(use_compression=False)
    with ocp.Checkpointer(handler) as orbax:
        places = {name: ocp.SaveArgs(chunk_byte_size=160) for name in arrays}
        orbax.save(tmp_path / "x", ocp.args.PyTreeSave(arrays, save_args=places))
    opened = open_arrays(epath.Path(tmp_path / "x"))
    for name, array in arrays.items():
        local = array.sharding.shard_shape(array.shape)
        assert opened[name].chunk == cut_shape(array.shape, local, max_elems=40), name


def test_what_is_cut() -> None:
    rows = CHUNK_BYTES // 4 // 1024
    assert not is_worth_cutting((rows, 1024), (rows, 1024), 4)
    assert is_worth_cutting((2 * rows, 1024), (2 * rows, 1024), 4)
    assert not is_worth_cutting((2 * rows, 1024), (rows, 1024), 4)
    # Dims that are prime would be cut into rows.
    assert not is_worth_cutting((32003, 4096), (32003, 4096), 4)
    assert is_worth_cutting((50257, 768), (50257, 768), 4)


def test_large_arrays_of_one_device_lie_in_several_chunks(tmp_path: Path) -> None:
    array = jnp.zeros((4 * CHUNK_BYTES // 4096, 1024))
    state = {"w": array, "b": jnp.zeros(8)}
    arguments = saving.save_arguments(state, compress=True)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as orbax:
        orbax.save(tmp_path / "x", arguments)
    opened = open_arrays(epath.Path(tmp_path / "x"))
    assert np.prod(opened["w"].chunk) * 4 == CHUNK_BYTES
    assert opened["b"].chunk == (8,)
