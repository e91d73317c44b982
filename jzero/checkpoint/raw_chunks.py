"""Reading a part of a chunk that is stored as it is.

TensorStore reads whole chunks, and one device writes one array as one chunk. Where
chunks hold nothing but the numbers in their order, which is so unless they are
compressed, a run of numbers is a run of bytes, and the store can hand out these alone.
Lives here: finding out which bytes, and asking for them. May import: `slabs.py`. Read
next: `store.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from jzero.checkpoint.slabs import Slab, runs

__all__ = ["RawChunks", "Run", "find_raw_chunks"]

# Of smaller chunks, parts are not worth asking for.
_LEAST_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A box that is being read as one run of bytes.

    Attributes:
        future: What TensorStore returned.
        slab: The box.
        dtype: The dtype of its numbers.
    """

    future: Any
    slab: Slab
    dtype: np.dtype[Any]

    def result(self) -> np.ndarray:
        """Waits for the numbers.

        Raises:
            ValueError: The store does not have them.
        """
        found = self.future.result()
        wanted_bytes = self.slab.size_elems * self.dtype.itemsize
        if found.state != "value" or len(found.value) != wanted_bytes:
            raise ValueError(f"the chunk around {self.slab.start} is missing or short")
        return np.frombuffer(found.value, self.dtype).reshape(self.slab.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawChunks:
    """Chunks of an array that are stored as they are.

    Attributes:
        kvstore: Where they are.
        chunk: Their shape.
        separator: What joins the numbers of a chunk to its key.
        dtype: The dtype of their numbers.
    """

    kvstore: Any
    chunk: tuple[int, ...]
    separator: str
    dtype: np.dtype[Any]

    def read(self, slab: Slab) -> Run | None:
        """Starts to read a box; None if it is not one run within one chunk."""
        grid = [
            first // step for first, step in zip(slab.start, self.chunk, strict=True)
        ]
        origin = [n * step for n, step in zip(grid, self.chunk, strict=True)]
        inner = slab.moved([-first for first in origin])
        ends = zip(inner.start, inner.shape, self.chunk, strict=True)
        if any(first + extent > step for first, extent, step in ends):
            return None
        run_elems, firsts = runs(inner, self.chunk)
        if len(firsts) != 1 or run_elems == prod(self.chunk):
            return None
        start = firsts[0] * self.dtype.itemsize
        span = slice(start, start + run_elems * self.dtype.itemsize)
        key = self.separator.join(map(str, grid))
        future = self.kvstore.read(key, byte_range=span)
        return Run(future=future, slab=slab, dtype=self.dtype)


def find_raw_chunks(array: Any) -> RawChunks | None:
    """Finds out whether the chunks of an opened array hold its numbers as they are.

    Returns:
        The chunks; None if they are encoded, or not worth the trouble.
    """
    shape = tuple(array.shape)
    chunk = tuple(array.chunk_layout.read_chunk.shape or ())
    dtype = array.dtype.numpy_dtype
    if prod(chunk) * dtype.itemsize < _LEAST_BYTES:
        return None
    about = array.spec().to_json()
    if about["driver"] != "zarr":
        return None
    layout = about["metadata"]
    encoded = layout.get("compressor") or layout.get("filters")
    # Chunks at the end of a dim are whole, even if the array is not.
    is_even = all(n % step == 0 for n, step in zip(shape, chunk, strict=True))
    if encoded or layout.get("order", "C") != "C" or not is_even:
        return None
    if not _is_as_in_memory(layout["dtype"]):
        return None
    separator = layout.get("dimension_separator", ".")
    return RawChunks(
        kvstore=array.kvstore, chunk=chunk, separator=separator, dtype=dtype
    )


def _is_as_in_memory(name: Any) -> bool:
    """Says whether numbers of a dtype are stored with the bytes of their memory.

    Example:
        >>> [_is_as_in_memory(name) for name in ("<f4", "bfloat16", ">f4", "int4")]
        [True, True, False, False]
    """
    is_native = isinstance(name, str) and name[0] in "<|"
    return is_native or name == "bfloat16" or str(name).startswith("float8")
