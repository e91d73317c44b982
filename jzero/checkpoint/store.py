"""The arrays of one saved step, opened and read piece by piece.

Lives here: how Orbax lays arrays out in a folder, opening them with TensorStore, and
reading ahead within a limit of memory. No JAX array is made and no device is touched,
so a step can be read beside a training that holds the accelerator. May import:
`raw_chunks.py`, `slabs.py`. Read next: `consolidating.py`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tensorstore as ts
from etils import epath

from jzero.checkpoint.raw_chunks import RawChunks, find_raw_chunks
from jzero.checkpoint.slabs import Slab, plan_slabs
from jzero.errors import CheckpointError

__all__ = ["Piece", "StoredArray", "open_arrays", "pieces_of", "read_ahead", "why"]

# Nodes of the store's tree are worth keeping, chunks are not: none is read twice.
_CONTEXT = {
    "cache_pool#nodes": {"total_bytes_limit": 32_000_000},
    "cache_pool#chunks": {"total_bytes_limit": 0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArray:
    """One array of a store.

    Attributes:
        keys: The keys of its path.
        array: The opened array.
        key_impl: For typed random keys, the name of their implementation. The array
            is then that of their bits, with one more dim.
        raw: The chunks, if parts of them can be read.
    """

    keys: tuple[str, ...]
    array: Any
    key_impl: str | None = None
    raw: RawChunks | None = None

    @property
    def path(self) -> str:
        """The keys as one text."""
        return "/".join(self.keys)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what is stored."""
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of what is stored."""
        return self.array.dtype.numpy_dtype

    @property
    def size_elems(self) -> int:
        """The number of elements of what is stored."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """The bytes of the whole array in memory."""
        return self.size_elems * self.dtype.itemsize

    @property
    def chunk(self) -> tuple[int, ...]:
        """The shape of the chunks, which are read whole."""
        # That of a scalar is None.
        return tuple(self.array.chunk_layout.read_chunk.shape or ())

    @property
    def is_compressed(self) -> bool:
        """Whether chunks are stored as other bytes than those of their numbers."""
        return self.array.codec.to_json().get("compressor", "unknown") is not None

    def read(self, slab: Slab) -> Any:
        """Starts to read a box, of a chunk that is stored as it is no more than that.

        Returns:
            Something whose `result()` waits for the numbers.
        """
        run = None if self.raw is None else self.raw.read(slab)
        return self.array[slab.index].read() if run is None else run


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What is to be read at once: one box, of one array or of two alike ones.

    Attributes:
        name: What texts call it.
        tag: Anything by which the caller knows the piece.
        arrays: The arrays.
        slab: The box within each of them.
    """

    name: str
    tag: Any
    arrays: tuple[StoredArray, ...]
    slab: Slab

    @property
    def size_bytes(self) -> int:
        """The bytes that it takes in memory."""
        return self.slab.size_elems * sum(a.dtype.itemsize for a in self.arrays)


def open_arrays(
    folder: epath.Path, paths: Collection[str] | None = None
) -> dict[str, StoredArray]:
    """Opens arrays of a folder that Orbax wrote.

    Args:
        folder: The folder of one item, with a `_METADATA` file.
        paths: Those to open; None opens all.

    Returns:
        The arrays by path, in the order of the file.

    Raises:
        CheckpointError: The folder is not one of Orbax, or arrays cannot be opened.

    Example:
        >>> open_arrays(epath.Path("nowhere"))
        Traceback (most recent call last):
        ...
        jzero.errors.CheckpointError: nowhere holds no arrays of Orbax: no _METADATA
    """
    about = _read_json(folder / "_METADATA")
    if about is None or "tree_metadata" not in about:
        raise CheckpointError(f"{folder} holds no arrays of Orbax: no _METADATA")
    context = ts.Context(_CONTEXT)
    key_impls = _key_impls(folder)
    names: dict[tuple[str, ...], str] = {}
    for entry in about["tree_metadata"].values():
        # Empty nodes and None have an entry, but no array.
        if not entry["value_metadata"]["skip_deserialize"]:
            keys = tuple(str(key["key"]) for key in entry["key_metadata"])
            if paths is None or "/".join(keys) in paths:
                names[keys] = ".".join(keys)
    opened = {
        keys: ts.open(_spec(folder, name, about), context=context, open=True, read=True)
        for keys, name in names.items()
    }
    arrays: dict[str, StoredArray] = {}
    for keys, future in opened.items():
        try:
            array = future.result()
        except ValueError as error:
            raise CheckpointError(
                f"{folder}: the array {'/'.join(keys)} cannot be opened: {why(error)}"
            ) from error
        stored = StoredArray(
            keys=keys,
            array=array,
            key_impl=key_impls.get(names[keys]),
            raw=find_raw_chunks(array),
        )
        arrays[stored.path] = stored
    return arrays


def read_ahead(
    pieces: Iterable[Piece], *, max_bytes: int
) -> Iterator[tuple[Piece, tuple[np.ndarray, ...]]]:
    """Reads pieces in order, the next ones while the caller is busy with one.

    Args:
        pieces: What to read.
        max_bytes: The most bytes that are read or wait to be taken; a larger piece
            is read by itself.

    Yields:
        Each piece with its contents, one array per array of the piece.

    Raises:
        CheckpointError: A piece cannot be read.
    """
    waiting: deque[tuple[Piece, list[Any]]] = deque()
    held_bytes = 0

    def take() -> tuple[Piece, tuple[np.ndarray, ...]]:
        piece, futures = waiting.popleft()
        try:
            return piece, tuple(np.asarray(future.result()) for future in futures)
        except ValueError as error:
            raise CheckpointError(
                f"{piece.name} cannot be read: {why(error)}"
            ) from error

    for piece in pieces:
        while waiting and held_bytes + piece.size_bytes > max_bytes:
            held_bytes -= waiting[0][0].size_bytes
            yield take()
        waiting.append((piece, [array.read(piece.slab) for array in piece.arrays]))
        held_bytes += piece.size_bytes
    while waiting:
        yield take()


def pieces_of(
    arrays: Sequence[StoredArray], *, tag: Any = None, max_bytes: int
) -> Iterator[Piece]:
    """Cuts one array, or several of the same shape, into pieces to read.

    Args:
        arrays: The arrays.
        tag: By which the caller knows the pieces.
        max_bytes: The most bytes of a piece, unless one chunk has more and cannot be
            read in parts.
    """
    shape = arrays[0].shape
    can_cut = all(a.raw is not None and a.chunk == arrays[0].chunk for a in arrays)
    # Chunks of two arrays mostly divide each other, so the larger is cut by neither.
    chunk = [max(sizes) for sizes in zip(*(a.chunk for a in arrays), strict=True)]
    itemsize = sum(array.dtype.itemsize for array in arrays)
    for slab in plan_slabs(
        shape, chunk, max_elems=max_bytes // itemsize, cut_chunks=can_cut
    ):
        yield Piece(name=arrays[0].path, tag=tag, arrays=tuple(arrays), slab=slab)


def why(error: ValueError) -> str:
    """Returns what TensorStore says without what it was told.

    Example:
        >>> why(ValueError("no such file [source locations: ...]"))
        'no such file'
    """
    return str(error).partition(" [")[0]


def _read_json(path: epath.Path) -> Any:
    """Returns the content of a file, None if there is none or it is broken."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _spec(folder: epath.Path, name: str, about: dict[str, Any]) -> dict[str, Any]:
    """Says to TensorStore where an array is, in the layout that the folder tells."""
    where = str(folder)
    # The name of an array may end with "/": that of a leaf with an empty key.
    name = name.removesuffix("/") + "/"
    remote = "://" in where
    base: Any = (
        where.rstrip("/") + "/" if remote else {"driver": "file", "path": f"{where}/"}
    )
    if about.get("use_ocdbt", True):
        kvstore: Any = {
            "driver": "ocdbt",
            "base": base,
            "path": name,
            "cache_pool": "cache_pool#nodes",
        }
    elif remote:
        kvstore = f"{base}{name}"
    else:
        kvstore = {"driver": "file", "path": f"{where}/{name}"}
    stores_zeros = about.get("store_array_data_equal_to_fill_value", False)
    return {
        "driver": "zarr3" if about.get("use_zarr3") else "zarr",
        "kvstore": kvstore,
        "cache_pool": "cache_pool#chunks",
        # What a finished step holds does not change.
        "recheck_cached_data": False,
        "recheck_cached_metadata": False,
        # Where even zeros are stored, a chunk that is not there is lost, not zero.
        "fill_missing_data_reads": not stores_zeros,
    }


def _key_impls(folder: epath.Path) -> dict[str, str]:
    """Returns the implementation of every array of random keys, by stored name."""
    found: dict[str, str] = {}
    listed = folder / "array_metadatas"
    for path in sorted(listed.iterdir()) if listed.is_dir() else ():
        for entry in (_read_json(path) or {}).get("array_metadatas", ()):
            facts = entry["array_metadata"]
            impl = (facts.get("ext_metadata") or {}).get("random_key_impl")
            if impl is not None:
                found[facts["param_name"]] = impl
    return found
