"""Tracing the user's function to a jaxpr over flat leaves.

Lives here: `trace_call`. Shapes and dtypes alone go in, so nothing runs and no
placement leaks into the program. May import: compat, ir, runtime.calls. Read
next: `match.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from jzero.compat.jaxpr import AnyJaxpr
from jzero.runtime.calls import Call, StepFunction
from jzero.runtime.collector import collector_paused
from jzero.runtime.mesh import tracing_context


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """A traced call.

    Attributes:
      jaxpr: closed jaxpr over the flat dynamic leaves.
      args: per dynamic argument, the same pytree of `ShapeDtypeStruct`s.
      out: what the function returns, as a pytree of `ShapeDtypeStruct`s.
    """

    jaxpr: AnyJaxpr
    args: tuple[Any, ...]
    out: Any


def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns shape, dtype and weak type of an array, struct or Python number."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, weak_type=getattr(leaf, "weak_type", False)
        )
    aval: Any = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(
        aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False)
    )


@collector_paused()
def trace_call(
    function: StepFunction, call: Call, mesh: Mesh, values: Sequence[Any] | None = None
) -> TracedCall:
    """Traces one call.

    Args:
      function: the user's function.
      call: the call, taken apart.
      mesh: devices with Auto axes, in case the caller has a mesh in context.
      values: dynamic arguments to use instead of the call's own.

    Returns:
      The program and the structures around it.
    """
    args = jax.tree.map(abstract, tuple(call.values if values is None else values))
    leaves, treedef = jax.tree.flatten(args)

    def flat(*flat_leaves: Any) -> Any:
        positional, keywords = function.join(call, treedef.unflatten(flat_leaves))
        return function.function(*positional, **keywords)

    flat.__name__ = function.name
    with tracing_context(mesh):
        jaxpr, out = jax.make_jaxpr(flat, return_shape=True)(*leaves)
    return TracedCall(jaxpr=jaxpr, args=args, out=out)


def strong(value: Any) -> Any:
    """Strips the weak type of a traced value."""
    if getattr(jax.typeof(value), "weak_type", False):
        return jax.lax.convert_element_type(value, value.dtype)
    return value


def trace_guessing(
    function: StepFunction, call: Call, mesh: Mesh, chosen: Sequence[int] | None
) -> tuple[TracedCall, tuple[int, ...]]:
    """Traces a call whose state arguments may not be known yet.

    A number in the state (a Flax `TrainState` starts at `step=0`) must be traced
    with a strong type, one in the data with a weak type. Which is which shows only
    afterwards, and tracing is most of the cost, so every tree of several leaves is
    taken for state.

    Args:
      function: the user's function.
      call: the call, taken apart.
      mesh: devices with Auto axes.
      chosen: the state arguments, where given.

    Returns:
      (traced call, the arguments that were traced as state).
    """
    guessed = chosen
    if guessed is None:
        sizes = [len(jax.tree.leaves(value)) for value in call.values]
        guessed = [i for i, size in enumerate(sizes) if size > 1]
    traced = trace_call(function, call, mesh, strong_state(call, guessed))
    return traced, tuple(guessed)


def weak_args(call: Call, state_args: Sequence[int]) -> set[int]:
    """Returns which of the arguments hold a leaf that came as a Python number."""
    return {
        i
        for i in state_args
        if any(abstract(x).weak_type for x in jax.tree.leaves(call.values[i]))
    }


def strong_state(call: Call, state_args: Sequence[int]) -> tuple[Any, ...]:
    """Returns abstract arguments with strong types in the state."""

    def strip(leaf: Any) -> jax.ShapeDtypeStruct:
        struct = abstract(leaf)
        return jax.ShapeDtypeStruct(struct.shape, struct.dtype)

    return tuple(
        jax.tree.map(strip if i in state_args else abstract, value)
        for i, value in enumerate(call.values)
    )
