"""Files of tensors in the safetensors format, written a piece at a time.

Lives here: the format's names for dtypes, its header, where each tensor lies in a
file, and how a file is read without copying it. The `safetensors` package takes and
gives whole tensors only, which is what consolidating must not hold; it still checks
every file that is written here. May import: `jzero.errors`. Read next: `shards.py`.
Source: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jzero.errors import CheckpointError

__all__ = [
    "Tensor",
    "file_header",
    "format_name",
    "lay_out",
    "map_tensors",
    "read_header",
]

_FORMAT_NAMES: dict[str, str] = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
_DTYPE_NAMES = {short: long for long, short in _FORMAT_NAMES.items()}
# Readers map the data behind the header, so it begins where any dtype may.
_ALIGNMENT_BYTES = 8
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor of a file.

    Attributes:
        name: Its name.
        dtype: A numpy dtype that the format knows.
        shape: Its shape.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of the tensor."""
        return prod(self.shape) * self.dtype.itemsize


def format_name(dtype: np.dtype[Any]) -> str | None:
    """Returns the format's name of a dtype; None if it has none.

    Example:
        >>> format_name(np.dtype("float32")), format_name(np.dtype("complex128"))
        ('F32', None)
    """
    return _FORMAT_NAMES.get(dtype.name)


def lay_out(tensors: Iterable[Tensor]) -> dict[str, int]:
    """Places tensors one behind the other, those of the widest dtypes first.

    In that order each begins at a multiple of its item's bytes, so it can be mapped.

    Args:
        tensors: The tensors of one file.

    Returns:
        Per name, in the order of the file, the first byte behind the header.

    Example:
        >>> flag = Tensor(name="b", dtype=np.dtype("bool"), shape=(3,))
        >>> lay_out([flag, Tensor(name="w", dtype=np.dtype("f4"), shape=(2, 2))])
        {'w': 0, 'b': 16}
    """
    offsets: dict[str, int] = {}
    end = 0
    for tensor in sorted(tensors, key=lambda tensor: -tensor.dtype.itemsize):
        offsets[tensor.name] = end
        end += tensor.size_bytes
    return offsets


def file_header(tensors: Iterable[Tensor], metadata: Mapping[str, str]) -> bytes:
    """Builds what stands before the data of a file.

    Args:
        tensors: The tensors of the file.
        metadata: What the file says about itself, texts only.

    Returns:
        The header's length and the header, padded with spaces.
    """
    known = {tensor.name: tensor for tensor in tensors}
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    for name, offset in lay_out(known.values()).items():
        tensor = known[name]
        entries[name] = {
            "dtype": _FORMAT_NAMES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.size_bytes],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    return _LENGTH.pack(len(text)) + text


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Reads what a file says about itself.

    Args:
        path: The file.

    Returns:
        The header, and the position in the file where its data begins.

    Raises:
        CheckpointError: The file has no such header.
    """
    with path.open("rb") as file:
        start = file.read(_LENGTH.size)
        length = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else -1
        # A file that is no such file may well promise more than there is.
        if not 0 < length <= path.stat().st_size:
            raise CheckpointError(f"{path} is no safetensors file: it has no header")
        try:
            header = json.loads(file.read(length))
        except ValueError:
            raise CheckpointError(
                f"{path} is no safetensors file: its header cannot be read"
            ) from None
    return header, _LENGTH.size + length


def map_tensors(path: Path) -> dict[str, np.ndarray]:
    """Maps the tensors of a file into memory, without reading them.

    Args:
        path: The file.

    Returns:
        Per name, a read-only array whose pages are read when they are touched.

    Raises:
        CheckpointError: The file is no such file, or is cut short.
    """
    header, start = read_header(path)
    header.pop("__metadata__", None)
    size_bytes = path.stat().st_size
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if start + end > size_bytes:
        raise CheckpointError(
            f"{path} is cut short: it has {size_bytes} bytes of {start + end}"
        )
    data = np.asarray(np.memmap(path, np.uint8, "r"))
    tensors: dict[str, np.ndarray] = {}
    for name, entry in header.items():
        dtype = _dtype(entry["dtype"], name, path)
        shape = tuple(entry["shape"])
        if 0 in shape:
            tensors[name] = np.zeros(shape, dtype)
            continue
        offset = start + entry["data_offsets"][0]
        piece = data[offset : offset + prod(shape) * dtype.itemsize]
        tensors[name] = piece.view(dtype).reshape(shape)
    return tensors


def _dtype(short: str, name: str, path: Path) -> np.dtype[Any]:
    long = _DTYPE_NAMES.get(short)
    if long is None:
        raise CheckpointError(
            f"{path}: {name} has dtype {short}, for which numpy has no name"
        )
    return np.dtype(getattr(ml_dtypes, long, long))
