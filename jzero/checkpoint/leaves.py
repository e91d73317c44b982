"""The leaves of a saved step, with the arrays they are stored in.

Lives here: joining what the manifest says with what the store has. May import:
`source.py`, `store.py`, `manifest.py`. Read next: `consolidating.py`, `differing.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jzero.checkpoint.manifest import join_path
from jzero.checkpoint.source import Source
from jzero.checkpoint.store import StoredArray, open_arrays
from jzero.errors import CheckpointError, format_problem

__all__ = ["Leaf", "StoredLeaves", "open_leaves"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One leaf of a saved state.

    Attributes:
        path: Its keys joined with "/".
        keys: Its keys.
        shape: The shape it had in the state.
        dtype: The dtype it had in the state, as text; "key<fry>" for random keys.
        role: "parameter", "optimizer", "other"; None where nobody wrote it down.
        array: What is stored; None for a leaf without elements, which is not.
        key_impl: For random keys, the name of their implementation.
    """

    path: str
    keys: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    role: str | None
    array: StoredArray | None
    key_impl: str | None = None

    @property
    def size_bytes(self) -> int:
        """The bytes of what is stored."""
        return 0 if self.array is None else self.array.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLeaves:
    """All leaves of a saved step.

    Attributes:
        source: The step.
        leaves: The leaves by path, those that are stored under another path left out.
        aliases: Path of a leaf that is the same array as another -> that one's path.
    """

    source: Source
    leaves: Mapping[str, Leaf]
    aliases: Mapping[str, str]


def open_leaves(source: Source) -> StoredLeaves:
    """Opens the arrays of a step.

    Args:
        source: The step.

    Returns:
        Its leaves.

    Raises:
        CheckpointError: Arrays are missing, or not as the manifest says.
    """
    is_bare = source.manifest is not None and not source.manifest.stored
    arrays = {} if is_bare else open_arrays(source.arrays_folder)
    if source.manifest is None:
        leaves = [_unrecorded(array) for array in arrays.values()]
        return StoredLeaves(
            source=source, leaves={leaf.path: leaf for leaf in leaves}, aliases={}
        )
    found: dict[str, Leaf] = {}
    wrong: list[tuple[str, str]] = []
    for saved in source.manifest.leaves:
        if saved.path in source.manifest.aliases:
            continue
        array = arrays.get(saved.stored_name) if saved.size_elems else None
        if saved.size_elems and array is None:
            wrong.append((saved.path, "is missing"))
        elif array is not None and array.size_elems < saved.size_elems:
            wrong.append((saved.path, f"has {array.shape} instead of {saved.shape}"))
        found[saved.path] = Leaf(
            path=saved.path,
            keys=saved.keys,
            shape=saved.shape,
            dtype=saved.dtype,
            role=saved.role,
            array=array,
            key_impl=saved.key_impl,
        )
    if wrong:
        raise CheckpointError(
            format_problem(
                f"{source.name}: arrays are not as its manifest says:",
                wrong,
                "the step is damaged; take another one.",
            )
        )
    return StoredLeaves(
        source=source, leaves=found, aliases=dict(source.manifest.aliases)
    )


def _unrecorded(array: StoredArray) -> Leaf:
    """Describes a leaf of which only the array is known."""
    keys, shape, dtype = array.keys, array.shape, array.dtype.name
    if array.key_impl is not None:
        shape, dtype = shape[:-1], f"key<{array.key_impl}>"
    return Leaf(
        path=join_path(keys),
        keys=keys,
        shape=shape,
        dtype=dtype,
        role=None,
        array=array,
        key_impl=array.key_impl,
    )
