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


def has_weak_state(traced: TracedCall, state_args: Sequence[int]) -> bool:
    """Says whether a state leaf came as a Python number."""
    return any(x.weak_type for i in state_args for x in jax.tree.leaves(traced.args[i]))


def strong_state(traced: TracedCall, state_args: Sequence[int]) -> tuple[Any, ...]:
    """Returns the traced arguments with strong types in the state."""

    def strip(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)

    return tuple(
        jax.tree.map(strip, a) if i in state_args else a
        for i, a in enumerate(traced.args)
    )
