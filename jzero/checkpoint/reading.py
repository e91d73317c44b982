"""Reading arrays of a step straight into their places on the devices.

Every device reads its own part of each array; no array is ever whole on one device or
host that wants a part. Lives here: random keys, tied leaves, and leaves that the store
does not hold. May import: `streaming.py`, `store.py`, runtime. Read next:
`checkpointer.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from jzero.checkpoint.manifest import Manifest, SavedLeaf
from jzero.checkpoint.store import StoredArray, open_arrays
from jzero.checkpoint.streaming import Wanted, read_arrays
from jzero.errors import CheckpointError, format_problem
from jzero.ir.specs import to_dims
from jzero.runtime.placement import place_leaf

__all__ = ["Target", "read_leaves"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A leaf to read.

    Attributes:
        saved: The leaf in the checkpoint.
        dtype: The dtype it is to have.
        sharding: Where it is to lie.
    """

    saved: SavedLeaf
    dtype: Any
    sharding: NamedSharding


def read_leaves(
    targets: Sequence[Target],
    manifest: Manifest,
    folder: epath.Path,
) -> list[jax.Array]:
    """Reads leaves, each into its place.

    Args:
        targets: What to read.
        manifest: What the step holds.
        folder: The item `state` of the step.

    Returns:
        One array per target, in order.
    """
    by_path = {leaf.path: leaf for leaf in manifest.leaves}
    # A further path of a tied leaf is read again: a step takes no array twice, and
    # its place or dtype may be another.
    stored = [
        by_path[manifest.aliases.get(t.saved.path, t.saved.path)] for t in targets
    ]
    names = {leaf.stored_name for leaf in stored if leaf.size_elems}
    arrays = open_arrays(folder, names) if names else {}
    structs = [_stored_struct(t, s) for t, s in zip(targets, stored, strict=True)]
    _check(names, stored, structs, arrays, folder)
    read = iter(
        read_arrays(
            [
                Wanted(
                    array=arrays[leaf.stored_name],
                    dtype=np.dtype(struct.dtype),
                    sharding=struct.sharding,
                )
                for leaf, struct in zip(stored, structs, strict=True)
                if leaf.size_elems
            ]
        )
    )
    return [
        _as_wanted(next(read) if leaf.size_elems else _empty(struct), target)
        for target, leaf, struct in zip(targets, stored, structs, strict=True)
    ]


def _empty(struct: jax.ShapeDtypeStruct) -> jax.Array:
    """Makes an array without elements, which the store does not hold."""
    return place_leaf(np.zeros(struct.shape, struct.dtype), struct.sharding)


def _check(
    names: Collection[str],
    stored: Sequence[SavedLeaf],
    structs: Sequence[jax.ShapeDtypeStruct],
    arrays: Mapping[str, StoredArray],
    folder: epath.Path,
) -> None:
    """Compares what the store has with what the manifest says it has."""
    wrong = {}
    for leaf, struct in zip(stored, structs, strict=True):
        name = leaf.stored_name
        if name not in names:
            continue
        if name not in arrays:
            wrong[name] = "is missing"
        elif arrays[name].shape != struct.shape:
            wrong[name] = f"has {arrays[name].shape} instead of {struct.shape}"
    if wrong:
        raise CheckpointError(
            format_problem(
                f"{folder}: arrays are not as the manifest says:", list(wrong.items())
            )
        )


def _stored_struct(target: Target, stored: SavedLeaf) -> jax.ShapeDtypeStruct:
    """Returns shape, dtype and place of what the store holds of a leaf."""
    if not stored.is_key:
        return jax.ShapeDtypeStruct(
            stored.shape, target.dtype, sharding=target.sharding
        )
    keys = jax.ShapeDtypeStruct(stored.shape, target.dtype)
    data = jax.eval_shape(jax.random.key_data, keys)
    dims = to_dims(target.sharding.spec, len(stored.shape))
    whole = (None,) * (len(data.shape) - len(stored.shape))
    sharding = NamedSharding(target.sharding.mesh, PartitionSpec(*dims, *whole))
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=sharding)


def _as_wanted(array: jax.Array, target: Target) -> jax.Array:
    if target.saved.key_impl is None:
        return array
    keys = jax.random.wrap_key_data(array, impl=target.saved.key_impl)
    if keys.sharding != target.sharding:
        keys = jax.device_put(keys, target.sharding)
    return keys
