"""What can be asked of a function that is already under `jax.jit`.

Lives here: unwrapping such a function, reading which of its arguments are static,
and giving a lowered one other trees. May import: jax alone. Read next:
`jzero/runtime/calls.py`.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import jax


def is_jitted(function: Callable[..., Any]) -> bool:
    """Says whether `function` is the result of `jax.jit`."""
    return hasattr(function, "_jit_info") and hasattr(function, "__wrapped__")


def unwrap_jit(
    function: Callable[..., Any],
) -> tuple[Callable[..., Any], tuple[int, ...], tuple[str, ...]]:
    """Returns (function without jit, its static argnums, its static argnames)."""
    if inspect.ismethod(function) and is_jitted(function):
        return _unwrap_method(function)
    nums: set[int] = set()
    names: set[str] = set()
    while is_jitted(function):
        jitted: Any = function
        info = jitted._jit_info
        nums.update(info.static_argnums or ())
        names.update(info.static_argnames or ())
        function = jitted.__wrapped__
    return function, tuple(sorted(nums)), tuple(sorted(names))


def _unwrap_method(
    method: types.MethodType,
) -> tuple[Callable[..., Any], tuple[int, ...], tuple[str, ...]]:
    """Unwraps `jit` under a bound method, where `self` counts as argument 0."""
    function, nums, names = unwrap_jit(method.__func__)
    bound = types.MethodType(function, method.__self__)
    parameters = list(inspect.signature(function).parameters)
    return (
        bound,
        tuple(n - 1 if n > 0 else n for n in nums if n != 0),
        tuple(n for n in names if n != parameters[0]),
    )


def with_trees(
    lowered: jax.stages.Lowered, in_treedef: Any, out_treedef: Any
) -> jax.stages.Lowered:
    """Returns the same lowered program for other trees of the same leaves.

    Args:
      lowered: a lowered function.
      in_treedef: structure of its positional arguments.
      out_treedef: structure of its result.

    Raises:
      ValueError: a structure has another number of leaves.
    """
    infos = jax.tree.leaves(lowered.args_info)
    args = in_treedef.unflatten(infos)
    if out_treedef.num_leaves != lowered.out_tree.num_leaves:
        raise ValueError(
            f"{out_treedef.num_leaves} results for {lowered.out_tree.num_leaves}"
        )
    lowering: Any = lowered._lowering
    return jax.stages.Lowered(lowering, (tuple(args), {}), out_treedef, no_kwargs=True)
