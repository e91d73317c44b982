"""Memory spaces within a traced program, in every supported version of JAX.

Lives here: copies between device and host memory, and computing on the host.
`compute_on` was a context manager up to 0.10 and is a transformation since. May
import: jax alone. Read next: `jzero/passes/offload.py`, the main user.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import ShapedArray
from jax.experimental import compute_on as _compute_on

__all__ = [
    "abstract_on_host",
    "compute_on_host",
    "is_on_host",
    "to_device",
    "to_host",
]

Space = jax.memory.Space

_IS_TRANSFORMATION = (
    "out_memory_spaces" in inspect.signature(_compute_on.compute_on).parameters
)


def abstract_on_host(aval: Any) -> ShapedArray:
    """Returns shape and dtype of an array, resting in host memory."""
    return ShapedArray(
        aval.shape,
        aval.dtype,
        weak_type=getattr(aval, "weak_type", False),
        memory_space=Space.Host,
    )


def is_on_host(aval: Any) -> bool:
    """Says whether an abstract or traced array rests in host memory."""
    return getattr(aval, "memory_space", None) == Space.Host


def to_device(x: jax.Array) -> jax.Array:
    """Copies to device memory, inside `jax.jit`."""
    return jax.device_put(x, Space.Device)


def to_host(x: jax.Array) -> jax.Array:
    """Copies to pinned host memory, inside `jax.jit`."""
    return jax.device_put(x, Space.Host)


def compute_on_host(
    function: Callable[..., Sequence[jax.Array]], *args: jax.Array, num_outs: int
) -> Sequence[jax.Array]:
    """Computes on the host, from and into host memory, inside `jax.jit`.

    Args:
        function: Takes and returns arrays.
        *args: Arrays in host memory.
        num_outs: How many arrays `function` returns, in a list.
    """
    decorate: Any = _compute_on.compute_on
    if _IS_TRANSFORMATION:
        spaces = [Space.Host] * num_outs
        run = decorate(function, compute_type="device_host", out_memory_spaces=spaces)
        return run(*args)
    with decorate("device_host"):
        return jax.jit(function)(*args)
