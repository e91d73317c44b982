"""Pieces come into place, in any order, without another copy of the part."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jzero.checkpoint.growing import Growing, can_grow


@pytest.mark.parametrize("dtype", ("float32", "bfloat16", "int8", "bool", "uint32"))
@pytest.mark.parametrize("num_devices", (1, 3))
def test_pieces_of_any_shape_make_the_part(num_devices: int, dtype: str) -> None:
    kind = jnp.dtype(dtype)
    values = np.random.default_rng(0).integers(0, 2, (6, 8)).astype(kind)
    devices = jax.devices()[:num_devices]
    part = Growing((6, 8), kind, devices)
    for start in ((4, 0), (0, 0), (2, 4), (2, 0)):
        rows, columns = start
        width = 4 if rows == 2 else 8
        part.write(values[rows : rows + 2, columns : columns + width], start)
    arrays = part.arrays()
    assert [array.devices() for array in arrays] == [{device} for device in devices]
    for array in arrays:
        np.testing.assert_array_equal(array, values)


def test_a_piece_is_written_in_place_and_may_be_used_again() -> None:
    part = Growing((4, 1024), np.dtype("float32"), jax.devices()[:1])
    before = part.arrays()[0].unsafe_buffer_pointer()
    piece = np.ones((1, 1024), np.float32)
    for row in range(4):
        piece[...] = row
        part.write(piece, (row, 0))
    (array,) = part.arrays()
    assert array.unsafe_buffer_pointer() == before
    np.testing.assert_array_equal(array[:, 0], np.arange(4))


CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "explicit mesh": lambda: jax.set_mesh(jax.make_mesh((8,), ("data",))),
    "auto mesh": lambda: jax.set_mesh(Mesh(np.array(jax.devices()), ("data",))),
    "no implicit transfers": lambda: jax.transfer_guard("disallow"),
}


@pytest.mark.parametrize("context", CONTEXTS)
def test_what_the_caller_has_set_does_not_matter(context: str) -> None:
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    mesh = Mesh(np.array(jax.devices()[1:3]), ("x",))
    with CONTEXTS[context]():
        shards = []
        for device in mesh.devices:
            part = Growing((4, 2), values.dtype, [device])
            part.write(values[2:], (2, 0))
            part.write(values[:2], (0, 0))
            shards += part.arrays()
        sharding = NamedSharding(mesh, PartitionSpec("x"))
        array = jax.make_array_from_single_device_arrays((8, 2), sharding, shards)
    np.testing.assert_array_equal(array + 1, np.tile(values, (2, 1)) + 1)


def test_only_a_devices_own_memory_is_written_to() -> None:
    devices = jax.devices()[:2]
    own = devices[0].default_memory().kind
    assert can_grow(devices, None) and can_grow(devices, own)
    others = {m.kind for m in devices[0].addressable_memories()} - {own}
    assert not any(can_grow(devices, kind) for kind in others | {"elsewhere"})
