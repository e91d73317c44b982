"""The backends by name, and the modules that hold their kernels.

Lives here: `Backend`, what a user may ask for, and finding a kernel by its name. May
import: jax alone. Read next: `fused.py`, `quantize.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Literal, get_args

__all__ = ["Backend", "check_backend", "find_kernel", "is_reference", "runs_on_shards"]

Backend = Literal[
    "auto",
    "xla",
    "mosaic_gpu",
    "mosaic_gpu_interpret",
    "pallas_tpu",
    "pallas_tpu_interpret",
]

_INTERPRET = "_interpret"


def check_backend(backend: str) -> None:
    """Raises `ValueError` unless there is such a backend."""
    if backend not in get_args(Backend):
        known = ", ".join(map(repr, get_args(Backend)))
        raise ValueError(f"There is no backend {backend!r}.\nRemedy: pass {known}.")


def is_reference(backend: str) -> bool:
    """Says whether a backend is plain JAX, which XLA fuses.

    "auto" is, until a kernel was measured to be faster.
    """
    return backend in ("auto", "xla")


def runs_on_shards(backend: str) -> bool:
    """Says whether kernels run on shards.

    The interpreter of GPU kernels calls back into Python, which shards may not.
    """
    return backend != "mosaic_gpu_interpret"


def find_kernel(backend: str, name: str) -> Callable[..., Any]:
    """Returns a function of the module that holds a backend's kernels.

    Args:
        backend: Not a reference.
        name: Of the function, the same in the modules of all backends.
    """
    # Late: Pallas takes half a second to import, and its GPU part changes often. Who
    # uses the reference should notice neither.
    module = import_module(f"pallas_kernels.{backend.removesuffix(_INTERPRET)}")
    return partial(getattr(module, name), interpret=backend.endswith(_INTERPRET))
