"""Handing a state to Orbax so that training may go on.

A step donates its state: the buffers that a save still reads cannot be reused, and JAX
then quietly allocates new ones, so that the state exists twice for as long as the save
runs. Orbax copies to the host before `save` returns where devices have a memory of
their own; on CPUs its "copy" is the buffer itself, and so is that of a leaf that lives
in pinned host memory. Lives here: the arrays to save, copied where Orbax would not,
and how the manager is set up. May import: Orbax, runtime. Read next:
`checkpointer.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath

from jzero.checkpoint.chunks import CHUNK_BYTES, is_worth_cutting
from jzero.checkpoint.handlers import make_registry
from jzero.checkpoint.manifest import SavedLeaf
from jzero.checkpoint.processes import process_options
from jzero.checkpoint.steps import scan_steps, step_folder
from jzero.runtime.placement import place_leaf
from jzero.runtime.states import StateView

__all__ = [
    "Snapshot",
    "arrays_to_save",
    "make_manager",
    "remove_unfinished",
    "save_arguments",
]

# "host" copies the state to host memory before `save` returns; "blocking" returns when
# all is written, so that on CPUs nothing need be copied.
Snapshot = Literal["host", "blocking"]


def arrays_to_save(
    view: StateView,
    leaves: tuple[SavedLeaf, ...],
    aliases: Mapping[str, str],
    snapshot: Snapshot,
) -> dict[str, jax.Array]:
    """Returns the arrays to store by name.

    Left out are leaves without elements, which Orbax refuses and the manifest
    describes, and further paths of one array. Of random keys it is their data.
    """
    arrays: dict[str, jax.Array] = {}
    rows = zip(view.leaves, leaves, view.shardings, strict=True)
    for leaf, saved, sharding in rows:
        if not saved.size_elems or saved.path in aliases:
            continue
        is_local = isinstance(leaf, jax.Array) and leaf.is_fully_addressable
        if not isinstance(leaf, jax.Array) or (is_local and jax.process_count() > 1):
            leaf = place_leaf(leaf, sharding)
        if saved.is_key:
            leaf = jax.random.key_data(leaf)
        elif snapshot == "host" and leaf.sharding.memory_kind == "pinned_host":
            leaf = _copy_on_host(leaf)
        arrays[saved.stored_name] = leaf
    return arrays


def _copy_on_host(leaf: jax.Array) -> jax.Array:
    return jax.jit(jnp.copy, out_shardings=leaf.sharding)(leaf)


def save_arguments(
    arrays: Mapping[str, jax.Array], *, compress: bool
) -> ocp.args.PyTreeSave:
    """Tells Orbax what to store, and in chunks of what size.

    Where chunks are not compressed, parts of them can be read, and cutting them would
    have Orbax copy what does not lie in one piece: up to the whole state.
    """
    limits = {
        name: CHUNK_BYTES if compress and _is_cut(array) else None
        for name, array in arrays.items()
    }
    return ocp.args.PyTreeSave(
        dict(arrays),
        save_args={
            name: ocp.SaveArgs(chunk_byte_size=limit) for name, limit in limits.items()
        },
    )


def _is_cut(array: jax.Array) -> bool:
    local_shape = array.sharding.shard_shape(array.shape)
    return is_worth_cutting(array.shape, local_shape, array.dtype.itemsize)


def make_manager(
    directory: epath.Path,
    *,
    keep: int | None,
    snapshot: Snapshot,
    compress: bool,
    timeout_seconds: float,
) -> ocp.CheckpointManager:
    """Sets up Orbax for a folder, which it does not create."""
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep,
        step_name_format=CompleteSteps(),
        create=False,
        save_root_metadata=False,
        async_options=ocp.AsyncOptions(timeout_secs=max(1, int(timeout_seconds))),
        multiprocessing_options=process_options(),
    )
    copies_first = snapshot == "host" and jax.default_backend() == "cpu"
    arrays = ocp.PyTreeCheckpointHandler(
        multiprocessing_options=options.multiprocessing_options,
        use_compression=compress,
        enable_pinned_host_transfer=True if copies_first else None,
    )
    return ocp.CheckpointManager(
        directory, options=options, handler_registry=make_registry(arrays)
    )


class CompleteSteps(ocp.path.step.NameFormat[ocp.path.step.Metadata]):
    """Shows Orbax complete steps alone.

    It would count any folder with a number for a name: as the latest, as there
    already, and as one of the few to keep.
    """

    def build_name(self, step: int) -> str:
        """Returns the name of a step's folder."""
        return str(step)

    def find_all(self, base_path: epath.PathLike) -> Iterator[ocp.path.step.Metadata]:
        """Yields the complete steps of a folder."""
        for found in scan_steps(base_path):
            if found.is_complete:
                yield ocp.path.step.Metadata(step=found.step, path=found.folder)

    def find_step(self, base_path: epath.PathLike, step: int) -> ocp.path.step.Metadata:
        """Returns a step by its number."""
        return ocp.path.step.Metadata(step=step, path=step_folder(base_path, step))


def remove_unfinished(directory: epath.Path) -> None:
    """Deletes what saves that broke off left behind: folders with temporary names.

    Only right where no other job saves to the folder.
    """
    for found in scan_steps(directory):
        if not found.is_complete and found.folder.name != str(found.step):
            found.folder.rmtree(missing_ok=True)


def size_bytes(arrays: Mapping[str, Any]) -> int:
    """Returns the bytes of whole arrays."""
    return sum(array.size * array.dtype.itemsize for array in arrays.values())
