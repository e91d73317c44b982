"""Steps that mutate `flax.nnx` objects, as functions of their state.

Lives here: recognising nnx objects among the arguments, turning the step into a
pure function of their states, and writing new states back. May import: flax,
runtime.calls. Read next: `jzero/step.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


def _nnx() -> Any:
    # An nnx object can only exist once flax.nnx is imported; users of other
    # libraries should not pay for importing it.
    return sys.modules.get("flax.nnx")


def is_mutable(value: Any) -> bool:
    """Says whether a value is an nnx object that a step may mutate."""
    nnx = _nnx()
    if nnx is None:
        return False
    kinds = tuple(
        kind
        for name in ("Module", "Optimizer", "Metric", "Rngs", "Object")
        if isinstance(kind := getattr(nnx, name, None), type)
    )
    return isinstance(value, kinds)


@dataclass(frozen=True, slots=True)
class Objects:
    """The nnx objects of one call.

    Attributes:
      keys: position or keyword of each in the call.
      values: the objects themselves.
      graphdef: their joint static structure, shared references included.
    """

    keys: tuple[int | str, ...]
    values: tuple[Any, ...]
    graphdef: Any

    @classmethod
    def split(
        cls, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Objects | None, tuple[Any, ...], dict[str, Any]]:
        """Replaces the nnx objects among the arguments by their states.

        Returns:
          The objects (None if there are none) and the new arguments.
        """
        pairs: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        found = [(k, v) for k, v in pairs if is_mutable(v)]
        if not found:
            return None, tuple(args), dict(kwargs)
        keys = tuple(k for k, _ in found)
        values = tuple(v for _, v in found)
        graphdef, states = split_states(values)
        new = dict(pairs) | dict(zip(keys, states, strict=True))
        objects = cls(keys, values, graphdef)
        return (
            objects,
            tuple(new[i] for i in range(len(args))),
            {k: new[k] for k in kwargs},
        )

    def pure(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function` on states: `(...) -> ((new states), result)`."""

        def step(*args: Any, **kwargs: Any) -> Any:
            call = dict(enumerate(args)) | kwargs
            objects = merge_states(self.graphdef, [call[k] for k in self.keys])
            call |= dict(zip(self.keys, objects, strict=True))
            result = function(
                *(call[i] for i in range(len(args))), **{k: call[k] for k in kwargs}
            )
            _, states = split_states(objects)
            return states, result

        step.__name__ = getattr(function, "__name__", "step")
        return step

    def update(self, states: Sequence[Any]) -> None:
        """Writes new states into the objects."""
        nnx = _nnx()
        for value, state in zip(self.values, states, strict=True):
            nnx.update(value, state)


def split_states(objects: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """Returns the joint graph definition and one state per object.

    A variable that several objects share belongs to the first that holds it.
    """
    nnx = _nnx()
    graphdef, joint = nnx.split(tuple(objects))
    states = tuple(
        joint[i] if i in joint else nnx.State({}) for i in range(len(objects))
    )
    return graphdef, states


def merge_states(graphdef: Any, states: Sequence[Any]) -> tuple[Any, ...]:
    """Returns objects of a graph definition that hold the given states."""
    nnx = _nnx()
    joint = nnx.State({i: s for i, s in enumerate(states) if len(s)})
    return nnx.merge(graphdef, joint)


def unwrap_nnx_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function inside `nnx.jit`, or the function itself."""
    nnx = _nnx()
    if nnx is None or not type(function).__module__.startswith("flax.nnx"):
        return function
    inner = getattr(function, "__wrapped__", None) or getattr(function, "fun", None)
    return inner if callable(inner) else function
