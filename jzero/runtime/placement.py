"""Putting arrays where a plan wants them, and bringing them back whole.

Lives here: placing a state and a batch, checking where arrays lie, gathering.
May import: plan, errors. Read next: `program.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jzero.errors import AliasError, DonationError, PlacementError, format_problem
from jzero.ir.specs import Dims, to_dims
from jzero.plan.host import DEVICE, HOST
from jzero.plan.leaves import is_key_dtype
from jzero.plan.plan import LeafPlan


def memory_kind(leaf: Any) -> str:
    """Returns the kind of memory that a leaf lies in: "device" or "pinned_host"."""
    kind = leaf.sharding.memory_kind if isinstance(leaf, jax.Array) else DEVICE
    return HOST if kind == HOST else DEVICE


def sharding_of(leaf: LeafPlan, mesh: Mesh) -> NamedSharding:
    """Returns where a plan wants a leaf: its spec, on the devices or their host."""
    if leaf.memory_kind == "device":
        return NamedSharding(mesh, leaf.spec)
    return NamedSharding(mesh, leaf.spec, memory_kind=leaf.memory_kind)


def user_spec(leaf: Any, mesh: Mesh, zero_axes: Sequence[str]) -> PartitionSpec:
    """Returns how the user already sharded a leaf, without the ZeRO axes.

    Args:
      leaf: an array (or struct) that may carry a `NamedSharding`.
      mesh: the mesh of the step; shardings of other meshes say nothing.
      zero_axes: axes that the plan adds by itself.
    """
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, NamedSharding) or not leaf.shape:
        return PartitionSpec()
    if dict(sharding.mesh.shape) != dict(mesh.shape):
        return PartitionSpec()
    return without_axes(sharding.spec, len(leaf.shape), zero_axes)


def without_axes(spec: PartitionSpec, rank: int, axes: Sequence[str]) -> PartitionSpec:
    """Returns a spec with some mesh axes removed from every dim."""
    dims: Dims = to_dims(spec, rank)
    kept = []
    for entry in dims:
        names = entry if isinstance(entry, tuple) else (entry,)
        left = tuple(n for n in names if n is not None and n not in axes)
        kept.append(None if not left else left[0] if len(left) == 1 else left)
    while kept and kept[-1] is None:
        kept.pop()
    return PartitionSpec(*kept)


def check_devices(rows: Iterable[tuple[str, Any]], mesh: Mesh) -> None:
    """Refuses arrays that live on devices outside of the mesh.

    Raises:
      PlacementError: naming every such leaf, its devices and the remedy.
    """
    known = set(mesh.devices.flat)
    wrong = []
    for path, leaf in rows:
        if not isinstance(leaf, jax.Array) or not leaf.committed:
            continue
        devices = leaf.sharding.device_set
        if len(devices) > 1 and devices != known:
            wrong.append((path, f"on {len(devices)} devices: {leaf.sharding}"))
    if wrong:
        raise PlacementError(
            format_problem(
                f"state from another mesh: this step runs on {len(known)} devices "
                f"{dict(mesh.shape)}",
                wrong,
                "move it with `state = step.shard(state)`",
            )
        )


def check_alive(rows: Iterable[tuple[str, Any]]) -> None:
    """Refuses arrays whose buffers were donated.

    Raises:
      DonationError: naming every deleted leaf.
    """
    gone = [
        (path, f"{leaf.dtype}{list(leaf.shape)} was donated and is deleted")
        for path, leaf in rows
        if isinstance(leaf, jax.Array) and leaf.is_deleted()
    ]
    if gone:
        raise DonationError(
            format_problem(
                "this state was already used: a step takes over the buffers of the "
                "state it is given",
                gone,
                "go on with the state that the step returned, or copy before: "
                "`old = jax.tree.map(jnp.copy, state)`",
            )
        )


def check_unshared(rows: Sequence[tuple[str, Any]]) -> None:
    """Refuses a state in which two paths hold one buffer.

    Donating a buffer twice is an error in new JAX and a crash in old, so it is
    found before the call.

    Raises:
      AliasError: naming both paths of every pair.
    """
    owners: dict[Any, str] = {}
    shared = []
    for path, leaf in rows:
        if not isinstance(leaf, jax.Array) or not leaf.size:
            continue
        key = _buffer_key(leaf)
        first = owners.setdefault(key, path)
        if first != path:
            shared.append((path, f"is the same buffer as {first}"))
    if shared:
        raise AliasError(
            format_problem(
                "two paths of the state hold one buffer, which cannot be donated twice",
                shared,
                "copy one of them (`jnp.copy`), place the state with "
                "`step.shard(state)`, which copies, or keep a tied weight at one path",
            )
        )


def _buffer_key(leaf: jax.Array) -> Any:
    shards = leaf.addressable_shards
    pointer = _pointer(shards[0].data) if shards else None
    # Typed keys and backends without pointers: the object itself.
    return id(leaf) if pointer is None else pointer


def is_placed(leaf: Any, target: NamedSharding) -> bool:
    """Says whether a leaf already lies as `target` wants it, on Auto axes."""
    if not isinstance(leaf, jax.Array) or getattr(leaf, "weak_type", False):
        return False
    sharding = leaf.sharding
    if sharding == target:
        return True
    return (
        isinstance(sharding, NamedSharding)
        and sharding.mesh.axis_types == target.mesh.axis_types
        and sharding.is_equivalent_to(target, leaf.ndim)
    )


def place_leaf(leaf: Any, sharding: NamedSharding, *, dtype: Any = None) -> jax.Array:
    """Copies one leaf to its place; the source keeps its own buffers.

    Host values must be the same on every process. The result has a strong type:
    a counter that starts as a Python number would otherwise compile twice.

    Args:
      leaf: array or Python number.
      sharding: where it goes.
      dtype: dtype for a Python number.
    """
    if not hasattr(leaf, "dtype"):
        leaf = np.asarray(leaf, dtype=dtype)
    elif getattr(leaf, "weak_type", False):
        leaf = jax.lax.convert_element_type(leaf, leaf.dtype)
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise DonationError(
            "cannot place a leaf that was donated and is deleted.\n"
            "Remedy: place the state that the last step returned."
        )
    is_global = isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
    if jax.process_count() == 1 or is_global:
        return _unshared(jax.device_put(leaf, sharding), leaf)
    if isinstance(leaf, jax.Array) and is_key_dtype(leaf.dtype):
        data = place_leaf(
            jax.random.key_data(leaf), NamedSharding(sharding.mesh, PartitionSpec())
        )
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    host = np.asarray(leaf)
    if host.dtype != jax.dtypes.canonicalize_dtype(host.dtype):
        host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype))
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def _unshared(placed: jax.Array, source: Any) -> jax.Array:
    """Copies what `device_put` placed without copying.

    Its `may_alias=False` is not heeded when it spreads an array over several
    devices (seen on 0.10.2 and 0.12): the shard on the source's own device is the
    source's buffer, and donating it would delete the source.
    """
    if not isinstance(source, jax.Array):
        return placed
    pointers = [_pointer(s.data) for s in source.addressable_shards]
    shards = [_pointer(s.data) for s in placed.addressable_shards]
    if None in pointers or not set(pointers).isdisjoint(shards):
        return jnp.copy(placed)
    return placed


def _pointer(single: jax.Array) -> int | None:
    try:
        return single.unsafe_buffer_pointer()
    except (AttributeError, RuntimeError, ValueError):
        return None  # typed keys, and backends that do not tell


def place_local(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """Makes a global array of every process's own part of a batch."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if jax.process_count() == 1:
        return jax.device_put(leaf, sharding)
    return jax.make_array_from_process_local_data(sharding, np.asarray(leaf))


def gather_leaf(leaf: Any, mesh: Mesh) -> Any:
    """Returns the whole of one array on this process's host.

    Every process must call it, in the same order.
    """
    if not isinstance(leaf, jax.Array):
        return leaf
    whole = leaf
    if not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        whole = jax.jit(
            lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec())
        )(leaf)
    if is_key_dtype(leaf.dtype):
        return whole
    return np.asarray(whole)
