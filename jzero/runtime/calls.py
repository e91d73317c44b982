"""A step function and how a call of it splits into static and dynamic parts.

Lives here: `StepFunction`. It makes every spelling of a call (positional, by
keyword, with static values, already jitted) one flat list of array leaves. May
import: compat, errors. Read next: `tracing.py`.
"""

from __future__ import annotations

import copy
import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jzero.compat.jit import unwrap_jit
from jzero.errors import ConfigError

Key = int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call, taken apart.

    Attributes:
      names: argument name of each dynamic argument, for paths and errors.
      keys: position or keyword of each dynamic argument.
      values: the dynamic arguments, pytrees of arrays.
      statics: (position or keyword, value) of each static argument.
      num_positional: how many positional arguments the call had.
    """

    names: tuple[str, ...]
    keys: tuple[Key, ...]
    values: tuple[Any, ...]
    statics: tuple[tuple[Key, Any], ...]
    num_positional: int


class StepFunction:
    """The user's function, without its `jax.jit` if it had one.

    Attributes:
      function: the plain function.
      name: its name, for messages.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Sequence[str] | None = None,
    ) -> None:
        if not callable(function):
            raise ConfigError(
                f"step_fn must be callable, got {type(function).__name__}.\n"
                "Remedy: pass the function itself, not its result."
            )
        plain, nums, names = unwrap_jit(function)
        self.function = plain
        self.name = getattr(plain, "__name__", type(plain).__name__)
        self._parameters = _parameters(plain)
        self._static_nums = {*nums, *_as_tuple(static_argnums, int)}
        self._static_names = {*names, *_as_tuple(static_argnames, str)}
        self._check_statics()

    def with_function(self, function: Callable[..., Any]) -> StepFunction:
        """Returns the same signature around another function."""
        twin = copy.copy(self)
        twin.function = function
        return twin

    def parameter_name(self, position: int) -> str:
        """Name of a positional parameter; `argN` where the function has none."""
        if position < len(self._parameters):
            return self._parameters[position]
        return f"arg{position}"

    def split(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Takes a call apart.

        Strings, enums, callables and `None`-free non-arrays of that kind are
        static even if nobody said so: they can be nothing else.
        """
        names, keys, values, statics = [], [], [], []
        pairs: list[tuple[Key, Any]] = [*enumerate(args), *sorted(kwargs.items())]
        for key, value in pairs:
            name = self.parameter_name(key) if isinstance(key, int) else key
            is_static = (
                key in self._static_nums
                or name in self._static_names
                or isinstance(value, (str, bytes, enum.Enum))
                or (callable(value) and not _is_tree(value))
            )
            if is_static:
                statics.append((key, value))
            else:
                names.append(name)
                keys.append(key)
                values.append(value)
        return Call(
            names=tuple(names),
            keys=tuple(keys),
            values=tuple(values),
            statics=tuple(statics),
            num_positional=len(args),
        )

    def join(
        self,
        call: Call,
        values: Sequence[Any],
    ) -> tuple[list[Any], dict[str, Any]]:
        """Puts dynamic values and the call's statics back in their places."""
        args: list[Any] = [None] * call.num_positional
        kwargs: dict[str, Any] = {}
        for key, value in [*zip(call.keys, values, strict=True), *call.statics]:
            if isinstance(key, int):
                args[key] = value
            else:
                kwargs[key] = value
        return args, kwargs

    def _check_statics(self) -> None:
        known = set(self._parameters)
        bad_names = sorted(n for n in self._static_names if n not in known)
        if bad_names and not _takes_anything(self.function):
            raise ConfigError(
                f"static_argnames {bad_names} are not parameters of {self.name}"
                f"({', '.join(self._parameters)}).\n"
                "Remedy: name parameters of the step function."
            )
        self._static_nums = {
            n + len(self._parameters) if n < 0 else n for n in self._static_nums
        }
        # As with jax.jit, a number and the name of the same parameter are one.
        for num in list(self._static_nums):
            if num < len(self._parameters):
                self._static_names.add(self._parameters[num])


def _as_tuple(value: Any, kind: type) -> tuple[Any, ...]:
    if value is None:
        return ()
    if type(value) is kind:
        return (value,)
    items: tuple[Any, ...] = tuple(value)
    bad = [v for v in items if not isinstance(v, kind) or isinstance(v, bool)]
    if bad:
        raise ConfigError(
            f"expected {kind.__name__} or a sequence of it, got {value!r}.\n"
            "Remedy: pass argument positions as int and names as str."
        )
    return items


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ()
    fixed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return tuple(n for n, p in signature.parameters.items() if p.kind not in fixed)


def _takes_anything(function: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    kinds = {p.kind for p in signature.parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds


def _is_tree(value: Any) -> bool:
    """A callable that holds arrays (a module, a TrainState) is data."""
    leaves = jax.tree.leaves(value)
    return not (len(leaves) == 1 and leaves[0] is value)
