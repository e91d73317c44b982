"""Reading arrays of a step straight into their places on the devices.

Every device reads its own part of each array; no array is ever whole on one device or
host that wants a part. Lives here: the arguments for Orbax, random keys, and leaves
that the store does not hold. May import: Orbax, runtime. Read next: `checkpointer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from jzero.checkpoint.manifest import Manifest, SavedLeaf
from jzero.checkpoint.processes import process_options
from jzero.ir.specs import to_dims
from jzero.runtime.placement import place_leaf

__all__ = ["Target", "read_leaves"]

# A state is read in so many parts at most, and in no smaller ones than this, a
# process.
_MOST_PARTS = 32
_LEAST_BYTES = 128 * 2**20


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
    structs, places = {}, {}
    names: list[str | None] = []
    for target in targets:
        stored = by_path[manifest.aliases.get(target.saved.path, target.saved.path)]
        if not stored.size_elems:
            names.append(None)
            continue
        # A further path of a tied leaf is read again: a step takes no array twice.
        name = stored.stored_name
        names.append(name)
        if name not in structs:
            structs[name] = _stored_struct(target, stored)
            places[name] = ocp.ArrayRestoreArgs(
                restore_type=jax.Array,
                sharding=structs[name].sharding,
                global_shape=structs[name].shape,
                dtype=structs[name].dtype,
            )
    arrays = _run(structs, places, folder) if structs else {}
    taken: set[str] = set()
    leaves = []
    for target, name in zip(targets, names, strict=True):
        if name is None:
            empty = np.zeros(target.saved.shape, target.dtype)
            leaves.append(place_leaf(empty, target.sharding))
            continue
        leaves.append(_as_wanted(arrays[name], target, is_copy=name in taken))
        taken.add(name)
    return leaves


def _run(
    structs: Mapping[str, jax.ShapeDtypeStruct],
    places: Mapping[str, ocp.ArrayRestoreArgs],
    folder: epath.Path,
) -> dict[str, Any]:
    """Reads a part of the leaves at a time: what is in flight is there twice."""
    options = process_options()
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=options)
    arrays: dict[str, Any] = {}
    with ocp.Checkpointer(handler, multiprocessing_options=options) as orbax:
        for names in _in_parts(structs):
            arguments = ocp.args.PyTreeRestore(
                item={name: structs[name] for name in names},
                restore_args={name: places[name] for name in names},
                partial_restore=True,
            )
            arrays |= orbax.restore(folder, args=arguments)
    return arrays


def _in_parts(structs: Mapping[str, jax.ShapeDtypeStruct]) -> list[list[str]]:
    """Cuts names into parts of few bytes, but no more parts than are worth it.

    Orbax can limit bytes in flight by itself, but then wakes every waiting read for
    each that ends: minutes, where leaves are many.
    """
    sizes = {name: x.size * x.dtype.itemsize for name, x in structs.items()}
    most_bytes = max(
        *sizes.values(),
        sum(sizes.values()) // _MOST_PARTS,
        _LEAST_BYTES * jax.process_count(),
    )
    parts: list[list[str]] = [[]]
    part_bytes = 0
    for name, size_bytes in sizes.items():
        if parts[-1] and part_bytes + size_bytes > most_bytes:
            parts.append([])
            part_bytes = 0
        parts[-1].append(name)
        part_bytes += size_bytes
    return parts


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


def _as_wanted(array: jax.Array, target: Target, *, is_copy: bool) -> jax.Array:
    if target.saved.key_impl is not None:
        array = jax.random.wrap_key_data(array, impl=target.saved.key_impl)
        if array.sharding != target.sharding:
            array = jax.device_put(array, target.sharding)
    return jnp.copy(array) if is_copy else array
