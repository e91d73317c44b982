"""The manifest of a saved step: what is in it, readable without any model code.

Lives here: the record, how it is written as JSON, and where it lies in a step's
folder. May import: errors. Read next: `checksums.py`, which lies beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from etils import epath

from jzero.errors import CheckpointError

__all__ = [
    "DATA_ITEM",
    "FORMAT",
    "MANIFEST_FILE",
    "MANIFEST_ITEM",
    "STATE_ITEM",
    "Manifest",
    "SavedLeaf",
    "join_path",
    "manifest_path",
    "read_manifest",
]

FORMAT = 1

# The parts of a step: folders below `<directory>/<step>/`.
STATE_ITEM = "state"  # arrays, an Orbax PyTree in OCDBT
DATA_ITEM = "data"  # positions of data iterators, one file per process
MANIFEST_ITEM = "jzero"  # this manifest and the checksums

MANIFEST_FILE = "manifest.json"

# The array of a state that is one bare array, whose path is empty.
_BARE = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedLeaf:
    """One leaf of a saved state.

    Attributes:
        path: Its keys joined with "/", as `join_path` does; unique in the manifest.
        keys: The keys as people spell them, e.g. `("params", "mlp", "kernel")`.
        shape: The global shape. A leaf without elements is not stored: the
            manifest says all there is to know.
        dtype: The dtype as text, e.g. "bfloat16"; "key<fry>" for typed random keys,
            of which `jax.random.key_data` is stored.
        role: "parameter", "optimizer" or "other".
        spec: How it was sharded when it was saved: per dim None, an axis, or axes.
        memory_kind: The memory it lived in, "device" or "pinned_host".
        key_impl: Of typed random keys, the name for `jax.random.wrap_key_data`.
    """

    path: str
    keys: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    role: str = "other"
    spec: tuple[str | tuple[str, ...] | None, ...] = ()
    memory_kind: str = "device"
    key_impl: str | None = None

    @property
    def size_elems(self) -> int:
        """The number of elements of the global array."""
        return prod(self.shape)

    @property
    def is_key(self) -> bool:
        """Whether the leaf holds typed random keys."""
        return self.key_impl is not None

    @property
    def stored_name(self) -> str:
        """The name of the leaf's array in the item `state`."""
        return self.path or _BARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a saved step holds, and what wrote it.

    Attributes:
        step: The number of the step.
        versions: Version by name: jzero, jax, jaxlib, orbax, python.
        stage: The ZeRO stage it was saved at.
        mesh_axes: Size of each mesh axis it was saved from.
        num_devices: How many devices the mesh had.
        num_processes: How many processes wrote it.
        time_utc: When it was saved, as ISO 8601.
        leaves: Every leaf of the state, in flattening order; aliases included.
        aliases: Path of a leaf that is the same array as another -> path of that
            other one, which alone is stored.
        format: Version of this record.
    """

    step: int
    versions: Mapping[str, str]
    stage: int
    mesh_axes: Mapping[str, int]
    num_devices: int
    num_processes: int
    time_utc: str
    leaves: tuple[SavedLeaf, ...]
    aliases: Mapping[str, str]
    format: int = FORMAT

    @property
    def stored(self) -> tuple[SavedLeaf, ...]:
        """The leaves that have an array in the item `state`."""
        return tuple(
            leaf
            for leaf in self.leaves
            if leaf.size_elems and leaf.path not in self.aliases
        )

    def leaf(self, path: str) -> SavedLeaf | None:
        """Returns the leaf at a path, or None."""
        return next((leaf for leaf in self.leaves if leaf.path == path), None)

    def to_json(self) -> str:
        """Writes the record as JSON text."""
        record = asdict(self)
        record["mesh"] = {"axes": record.pop("mesh_axes")}
        return json.dumps(record, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Reads what `to_json` wrote.

        Raises:
            CheckpointError: It is no such record, or of a later format.
        """
        try:
            record = json.loads(text)
            number = record["format"]
            if number > FORMAT:
                raise CheckpointError(
                    f"the checkpoint's manifest has format {number}; this jzero "
                    f"reads up to {FORMAT}.\nRemedy: install a newer jzero."
                )
            record["mesh_axes"] = record.pop("mesh")["axes"]
            record["leaves"] = tuple(_leaf(entry) for entry in record["leaves"])
            return cls(**record)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"not a manifest: {error!r}") from error


def _leaf(entry: dict[str, Any]) -> SavedLeaf:
    spec = tuple(tuple(e) if isinstance(e, list) else e for e in entry["spec"])
    lists = {"keys": tuple(entry["keys"]), "shape": tuple(entry["shape"])}
    return SavedLeaf(**{**entry, **lists, "spec": spec})


def join_path(keys: Sequence[str]) -> str:
    """Joins keys with "/"; within a key, "~" becomes "~0" and "/" becomes "~1".

    Source: JSON Pointer, RFC 6901, section 3.

    Example:
        >>> join_path(["params", "a/b"])
        'params/a~1b'
    """
    return "/".join(key.replace("~", "~0").replace("/", "~1") for key in keys)


def manifest_path(step_folder: epath.PathLike) -> epath.Path:
    """Returns where the manifest of a step lies."""
    return epath.Path(step_folder) / MANIFEST_ITEM / MANIFEST_FILE


def read_manifest(step_folder: epath.PathLike) -> Manifest:
    """Reads the manifest of a committed step.

    Args:
        step_folder: `<directory>/<step>`, a local path or `gs://...`.

    Raises:
        CheckpointError: There is none, or it cannot be read.
    """
    path = manifest_path(step_folder)
    try:
        text = path.read_text()
    except OSError as error:
        raise CheckpointError(
            f"{step_folder} holds no manifest of jzero ({path}: {error}).\n"
            "Remedy: name a step that jzero.Checkpointer has written to its end."
        ) from error
    return Manifest.from_json(text)
