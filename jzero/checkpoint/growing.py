"""Large parts of arrays that are put together where they are to lie.

A part that is whole on the host before it is copied to its devices takes its memory
twice on CPUs, and a buffer of its size elsewhere. Pieces written into place take
theirs. Lives here: `Growing`, and `can_grow`. May import: nothing. Read next:
`streaming.py`, which brings the pieces.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

__all__ = ["Growing", "can_grow"]


def can_grow(devices: Sequence[Any], memory_kind: str | None) -> bool:
    """Says whether pieces can be written: programs write to a device's own memory."""
    return memory_kind is None or all(
        device.default_memory().kind == memory_kind for device in devices
    )


class Growing:
    """A part of an array, on each of the devices that hold it.

    Args:
        shape: The part's shape.
        dtype: Its dtype.
        devices: The devices.

    Example:
        >>> part = Growing((4,), np.dtype("float32"), jax.devices()[:1])
        >>> part.write(np.ones(2, np.float32), (2,))
        >>> part.arrays()[0].tolist()
        [0.0, 0.0, 1.0, 1.0]
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], devices: Sequence[Any]
    ) -> None:
        self._devices = devices
        self._arrays: list[jax.Array] = []
        # A zero is all that goes there; whoever forbids that did not mean this.
        with _no_mesh(), jax.transfer_guard_host_to_device("allow"):
            for device in devices:
                # `device=` would make it on another and copy it.
                with jax.default_device(device):
                    self._arrays.append(jnp.zeros(shape, dtype))

    def write(self, values: np.ndarray, start: tuple[int, ...]) -> None:
        """Writes a piece; when it returns, nobody looks at `values` any more.

        Args:
            values: What to write, of the part's dtype. On CPUs it is used as it is if
                it is aligned, and copied first if not.
            start: Where in the part it begins.
        """
        # As numbers of the program, so that all pieces of a shape share one.
        index = tuple(np.int32(first) for first in start)
        for number, device in enumerate(self._devices):
            with _no_mesh():
                piece = jax.device_put((values, index), SingleDeviceSharding(device))
                self._arrays[number] = _write(self._arrays[number], *piece)
        jax.block_until_ready(self._arrays)

    def arrays(self) -> list[jax.Array]:
        """Returns the part on each device."""
        return self._arrays


def _no_mesh() -> AbstractContextManager[Any]:
    """Unsets the caller's mesh, for which programs would be compiled otherwise."""
    return jax.set_mesh(Mesh(np.empty((), object), ()))


@functools.partial(jax.jit, donate_argnums=0)
def _write(whole: jax.Array, piece: jax.Array, start: tuple[Any, ...]) -> jax.Array:
    return jax.lax.dynamic_update_slice(whole, piece, start)
