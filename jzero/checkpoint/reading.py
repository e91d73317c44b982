"""Reading arrays of a step straight into their places on the devices.

Every device reads its own part of each array; no array is ever whole on one device or
host that wants a part. Lives here: the arguments for Orbax, random keys, and leaves
that the store does not hold. May import: Orbax, runtime. Read next: `checkpointer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
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
    structs: Mapping[str, jax.ShapeDtypeStruct], places: Any, folder: epath.Path
) -> Mapping[str, Any]:
    # Bytes in flight are those of one leaf, beside the state itself. Orbax counts in
    # 10^9; a fraction gives it the very number.
    most_bytes = max(x.size * x.dtype.itemsize for x in structs.values()) + 1
    options = process_options()
    handler = ocp.PyTreeCheckpointHandler(
        restore_concurrent_gb=Fraction(most_bytes, 10**9),  # type: ignore[arg-type]
        multiprocessing_options=options,
    )
    arguments = ocp.args.PyTreeRestore(
        item=dict(structs), restore_args=places, partial_restore=True
    )
    with ocp.Checkpointer(handler, multiprocessing_options=options) as orbax:
        return orbax.restore(folder, args=arguments)


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
