"""Arrays go where they should, and nothing of the caller's goes with them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jzero.errors import AliasError, DonationError, PlacementError
from jzero.runtime.placement import (
    check_alive,
    check_devices,
    check_unshared,
    gather_leaf,
    is_placed,
    place_leaf,
    user_spec,
    without_axes,
)

MESH = Mesh(np.array(jax.devices()), ("data",))
TWO = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))


@pytest.mark.parametrize("spec", (P(), P("data")))
def test_placing_copies_even_where_device_put_would_not(spec: P) -> None:
    source = jnp.ones((16, 4))
    placed = place_leaf(source, NamedSharding(MESH, spec))
    assert is_placed(placed, NamedSharding(MESH, spec))
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    double(placed)
    assert placed.is_deleted()
    np.testing.assert_array_equal(source, np.ones((16, 4)))


def test_python_numbers_get_strong_types() -> None:
    placed = place_leaf(3, NamedSharding(MESH, P()), dtype=jnp.int32)
    assert placed.dtype == jnp.int32
    assert not placed.weak_type


def test_keys_are_placed_and_gathered() -> None:
    key = jax.random.key(5)
    placed = place_leaf(key, NamedSharding(MESH, P()))
    assert placed.sharding.device_set == set(jax.devices())
    gathered = gather_leaf(placed, MESH)
    assert (jax.random.key_data(gathered) == jax.random.key_data(key)).all()


def test_user_axes_are_kept_and_zero_axes_taken_off() -> None:
    leaf = jax.device_put(jnp.ones((8, 4)), NamedSharding(TWO, P("data", "model")))
    assert user_spec(leaf, TWO, ("data",)) == P(None, "model")
    assert user_spec(leaf, MESH, ("data",)) == P()
    assert without_axes(P(("model", "data"), None), 2, ("data",)) == P("model")


def test_checks_name_leaves() -> None:
    few = Mesh(np.array(jax.devices()[:2]), ("data",))
    leaf = jax.device_put(jnp.ones((8,)), NamedSharding(few, P("data")))
    with pytest.raises(PlacementError, match=r"state\['w'\]"):
        check_devices([("state['w']", leaf)], MESH)
    check_devices([("host", np.ones(3)), ("loose", jnp.ones(3))], MESH)
    with pytest.raises(AliasError, match=r"b(.|\n)*a"):
        check_unshared([("a", leaf), ("b", leaf)])
    check_unshared([("a", leaf), ("b", jnp.ones((8,)))])
    leaf.delete()
    with pytest.raises(DonationError, match=r"float32\[8\]"):
        check_alive([("state['w']", leaf)])
    with pytest.raises(DonationError):
        place_leaf(leaf, NamedSharding(MESH, P()))
