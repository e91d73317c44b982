"""What is handed to Orbax, and what is cleared away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from jzero.checkpoint.contents import describe_leaves, find_aliases
from jzero.checkpoint.saving import arrays_to_save, remove_unfinished, size_bytes
from tests.jzero.checkpoint.small import create, make_step


def stored(state: Any, snapshot: Any = "host") -> dict[str, jax.Array]:
    view = make_step().view(state)
    leaves = describe_leaves(view)
    return arrays_to_save(view, leaves, find_aliases(view.leaves, leaves), snapshot)


def test_leaves_that_the_store_takes() -> None:
    state = create()
    arrays = stored(state)
    assert "empty" not in arrays
    assert arrays["key"].dtype == jnp.uint32
    assert arrays["params/up"] is state.params["up"]
    sizes = [x.size * x.dtype.itemsize for x in arrays.values()]
    assert size_bytes(arrays) == sum(sizes)


def test_ties_are_stored_once_and_numbers_become_arrays() -> None:
    w = jnp.ones((8,))
    arrays = stored({"a": w, "b": w, "n": 3, "h": np.ones(4, np.int16)})
    assert set(arrays) == {"a", "n", "h"}
    assert arrays["n"].dtype == jnp.int32 and arrays["h"].dtype == jnp.int16


@pytest.mark.parametrize("snapshot", ("host", "blocking"))
def test_a_leaf_in_host_memory_is_copied_where_training_goes_on(snapshot: Any) -> None:
    mesh = make_step()._settings.mesh
    place = NamedSharding(mesh, PartitionSpec("data"), memory_kind="pinned_host")
    moment = jax.device_put(jnp.arange(16.0), place)
    got = stored({"w": jnp.ones(16), "mu": moment}, snapshot)["mu"]
    assert got.sharding == place
    np.testing.assert_array_equal(got, moment)
    mine = {s.data.unsafe_buffer_pointer() for s in moment.addressable_shards}
    theirs = {s.data.unsafe_buffer_pointer() for s in got.addressable_shards}
    assert mine.isdisjoint(theirs) == (snapshot == "host")


def test_only_temporary_folders_are_cleared_away(tmp_path: Path) -> None:
    for name in ("3.orbax-checkpoint-tmp", "4", "notes", "5.tmp"):
        (tmp_path / name / "state").mkdir(parents=True)
    remove_unfinished(epath.Path(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["4", "notes"]
