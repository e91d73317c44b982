"""What can be asked of a function that is already under `jax.jit`.

Lives here: unwrapping such a function and reading which of its arguments are
static. May import: jax alone. Read next: `jzero/runtime/calls.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def is_jitted(function: Callable[..., Any]) -> bool:
    """Says whether `function` is the result of `jax.jit`."""
    return hasattr(function, "_jit_info") and hasattr(function, "__wrapped__")


def unwrap_jit(
    function: Callable[..., Any],
) -> tuple[Callable[..., Any], tuple[int, ...], tuple[str, ...]]:
    """Returns (function without jit, its static argnums, its static argnames)."""
    nums: set[int] = set()
    names: set[str] = set()
    while is_jitted(function):
        jitted: Any = function
        info = jitted._jit_info
        nums.update(info.static_argnums or ())
        names.update(info.static_argnames or ())
        function = jitted.__wrapped__
    return function, tuple(sorted(nums)), tuple(sorted(names))
