"""Numbers whose dtype the safetensors format lacks, and what holds them.

Lives here: the way there and the way back. A 4-bit integer becomes a byte of the
same value, any other number its bits. May import: `tensor_file.py`. Read next:
`export.py`, `loading.py`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jzero.checkpoint.tensor_file import format_name

__all__ = ["decode", "dtype_of", "encode", "storable"]


def dtype_of(text: str) -> np.dtype[Any]:
    """Returns the numpy dtype of a name; that of their bits for typed random keys.

    Example:
        >>> dtype_of("bfloat16"), dtype_of("key<fry>")
        (dtype(bfloat16), dtype('uint32'))
    """
    if text.startswith("key<"):
        return np.dtype("uint32")
    return np.dtype(getattr(ml_dtypes, text, text))


def storable(
    dtype: np.dtype[Any], shape: tuple[int, ...]
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Returns the dtype that holds another one, and the shape it then has.

    Example:
        >>> storable(np.dtype("complex128"), (3,))
        (dtype('float64'), (3, 2))
        >>> storable(np.dtype("float32"), (3,))
        (dtype('float32'), (3,))
    """
    if format_name(dtype) is not None:
        return dtype, shape
    if _is_narrow_integer(dtype):
        is_signed = jnp.issubdtype(dtype, np.signedinteger)
        return np.dtype("int8" if is_signed else "uint8"), shape
    if dtype == np.complex128:
        return np.dtype("float64"), (*shape, 2)
    return np.dtype(f"uint{8 * dtype.itemsize}"), shape


def encode(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Turns numbers into those of the dtype that `storable` gave for theirs.

    Example:
        >>> encode(np.ones(2, ml_dtypes.int4), np.dtype("int8"))
        array([1, 1], dtype=int8)
    """
    if values.dtype == dtype:
        return values
    if _is_narrow_integer(values.dtype):
        return values.astype(dtype)
    if values.dtype == np.complex128:
        values = values[..., np.newaxis]
    return np.asarray(values, order="C").view(dtype)


def decode(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Turns what `encode` returned for a whole array into its numbers again.

    Example:
        >>> decode(np.ones((3, 2)), np.dtype("complex128"))
        array([1.+1.j, 1.+1.j, 1.+1.j])
    """
    if values.dtype == dtype:
        return values
    if _is_narrow_integer(dtype):
        return values.astype(dtype)
    if dtype == np.complex128:
        return np.asarray(values, order="C").view(dtype)[..., 0]
    return np.asarray(values, order="C").view(dtype)


def _is_narrow_integer(dtype: np.dtype[Any]) -> bool:
    """Says whether a dtype is an integer of less than a byte, in a byte each."""
    return format_name(dtype) is None and bool(jnp.issubdtype(dtype, np.integer))
