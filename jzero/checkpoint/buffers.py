"""Memory that parts of arrays are put together in, and that is used again.

Memory that is given back to the allocator and taken anew costs time, since the system
clears every page, and room, since the allocator keeps some of it: more than what is in
flight. Lives here: `Buffers`. May import: nothing. Read next: `streaming.py`.
"""

from __future__ import annotations

import mmap
from math import prod
from typing import Any

import numpy as np

__all__ = ["Buffers"]

# On CPUs, JAX takes memory that is aligned to so many bytes as it is. It then does not
# own it, and a step that is given the array cannot write its result there.
_ALIGNED_BYTES = 64
_SHIFT_BYTES = 16


class Buffers:
    """Arrays for a short time.

    Args:
        limit_bytes: The most bytes that are kept for later.

    Example:
        >>> buffers = Buffers(1000)
        >>> first = buffers.take((4, 4), np.dtype("float32"))
        >>> buffers.give_back(first)
        >>> second = buffers.take((8, 2), np.dtype("float32"))
        >>> second.ctypes.data == first.ctypes.data
        True
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._free: list[np.ndarray] = []
        self._free_bytes = 0
        self._taken: dict[int, np.ndarray] = {}

    def take(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], *, is_copied: bool = True
    ) -> np.ndarray:
        """Returns an array of anything.

        Args:
            shape: Its shape.
            dtype: Its dtype.
            is_copied: Whether JAX is to make a copy of it, or may use it as it is.
        """
        num_bytes = prod(shape) * dtype.itemsize
        raw = self._find(num_bytes)
        if raw is None:
            # The allocator keeps what it is given back, in as many heaps as threads.
            raw = np.frombuffer(mmap.mmap(-1, num_bytes + 2 * _ALIGNED_BYTES), np.uint8)
        start = -raw.ctypes.data % _ALIGNED_BYTES + is_copied * _SHIFT_BYTES
        array = raw[start : start + num_bytes].view(dtype).reshape(shape)
        self._taken[array.ctypes.data] = raw
        return array

    def give_back(self, array: np.ndarray) -> None:
        """Takes back what `take` returned and nobody uses any more."""
        raw = self._taken.pop(array.ctypes.data)
        self._free.append(raw)
        self._free_bytes += raw.nbytes
        while self._free_bytes > self._limit_bytes:
            self._free_bytes -= self._free.pop(0).nbytes

    def _find(self, num_bytes: int) -> np.ndarray | None:
        """Finds memory that is large enough, and not much larger."""
        wanted_bytes = num_bytes + 2 * _ALIGNED_BYTES
        fitting = [
            i
            for i, raw in enumerate(self._free)
            if wanted_bytes <= raw.nbytes <= 2 * wanted_bytes
        ]
        if not fitting:
            return None
        raw = self._free.pop(min(fitting, key=lambda i: self._free[i].nbytes))
        self._free_bytes -= raw.nbytes
        return raw
