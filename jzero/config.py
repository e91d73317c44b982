"""`ZeroConfig`: every setting besides the stage and the mesh.

Lives here: the one frozen record of settings and its validation. May import:
`errors`. Read next: `plan/stages.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, SupportsIndex, cast

from jzero.errors import ConfigError, format_problem

__all__ = [
    "PASS_NAMES",
    "CompilerOption",
    "ParamsSelector",
    "ZeroConfig",
    "parse_bytes",
]

CompilerOption = bool | int | float | str
ParamsSelector = str | tuple[str, ...] | Callable[[str], bool]

PASS_NAMES: tuple[str, ...] = (
    "spread_batch",
    "reduce_at_birth",
    "window",
    "gather_at_use",
)

_MIB = 2**20
_UNITS: Mapping[str, int] = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}


@dataclass(frozen=True, slots=True, init=False)
class ZeroConfig:
    """Settings of a sharded training step. Frozen, keyword-only and hashable.

    Attributes:
        axis: The mesh axis (or axes) over which state is sharded.
        batch_axis: The mesh axis (or axes) that split the batch. None means the
            ZeRO axes.
        persistence_threshold: Leaves with fewer elements stay replicated: their
            gather would cost more in latency than it saves in memory.
        gather_dtype: "compute" gathers a parameter after the model's own cast, so
            16-bit bytes move; "param" gathers it in the dtype it is stored in.
        reduce_window_bytes: The most bytes of full gradients alive at once, at
            the stages that reduce gradients as they are produced. An int, or a
            text such as "64MB" or "16MiB".
        reuse_window_bytes: The most bytes of gathered weights kept alive to be
            used again, at the stage that gathers at each use. Int or text.
        prefetch_bytes: How many bytes of weights may be gathered ahead of the
            activation that they serve, at the stage that gathers at each use.
        replicate_params: Keep whole parameters at rest (stages 1 and 2).
        params: Which state leaves are parameters, when the structure does not
            say: regular expressions searched in the leaf's path, or a predicate
            of the path.
        compiler_options: XLA options of the compiled step, as sorted pairs. Given
            as any mapping.
        disable_passes: Names of passes to leave out, for diagnosis.
        on_finding: What to do when a compiled step does what its plan did not ask
            for: "warn" once per compile, "raise", or "ignore", which also saves the
            time to look.

    Raises:
        ConfigError: A value is of the wrong kind, out of range, or unknown.

    Example:
        >>> ZeroConfig(axis=("data", "fsdp"), reduce_window_bytes="8MiB").axes
        ('data', 'fsdp')
    """

    axis: str | tuple[str, ...]
    batch_axis: str | tuple[str, ...] | None
    persistence_threshold: int
    gather_dtype: Literal["compute", "param"]
    reduce_window_bytes: int
    reuse_window_bytes: int
    prefetch_bytes: int
    replicate_params: bool
    params: ParamsSelector | None
    compiler_options: tuple[tuple[str, CompilerOption], ...]
    disable_passes: tuple[str, ...]
    on_finding: Literal["ignore", "warn", "raise"]

    # Written out, not generated: the arguments are wider than the fields.
    def __init__(
        self,
        *,
        axis: str | Iterable[str] = "data",
        batch_axis: str | Iterable[str] | None = None,
        persistence_threshold: int = 2**14,
        gather_dtype: Literal["compute", "param"] = "compute",
        reduce_window_bytes: int | str = 16 * _MIB,
        reuse_window_bytes: int | str = 32 * _MIB,
        prefetch_bytes: int | str = 32 * _MIB,
        replicate_params: bool = False,
        params: str | Iterable[str] | Callable[[str], bool] | None = None,
        compiler_options: Mapping[str, CompilerOption]
        | Iterable[tuple[str, CompilerOption]]
        | None = None,
        disable_passes: Iterable[str] = (),
        on_finding: Literal["ignore", "warn", "raise"] = "warn",
    ) -> None:
        values = {
            "axis": _axis(axis, "axis"),
            "batch_axis": None
            if batch_axis is None
            else _axis(batch_axis, "batch_axis"),
            "persistence_threshold": _count(
                persistence_threshold, "persistence_threshold"
            ),
            "gather_dtype": _choice(gather_dtype, ("compute", "param"), "gather_dtype"),
            "reduce_window_bytes": parse_bytes(
                reduce_window_bytes, "reduce_window_bytes"
            ),
            "reuse_window_bytes": parse_bytes(reuse_window_bytes, "reuse_window_bytes"),
            "prefetch_bytes": parse_bytes(prefetch_bytes, "prefetch_bytes"),
            "replicate_params": _flag(replicate_params, "replicate_params"),
            "params": _selector(params),
            "compiler_options": _compiler_options(compiler_options),
            "disable_passes": _pass_names(disable_passes),
            "on_finding": _choice(
                on_finding, ("ignore", "warn", "raise"), "on_finding"
            ),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def axes(self) -> tuple[str, ...]:
        """The ZeRO axes, always as a tuple."""
        return (self.axis,) if isinstance(self.axis, str) else self.axis

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """The mesh axes that split the batch, always as a tuple."""
        if self.batch_axis is None:
            return self.axes
        if isinstance(self.batch_axis, str):
            return (self.batch_axis,)
        return self.batch_axis


def parse_bytes(value: object, name: str = "size") -> int:
    """Returns a size in bytes from an int or a text such as "64MB" or "16MiB".

    Raises:
        ConfigError: The size is negative, not whole, or not readable.

    Example:
        >>> parse_bytes("1.5MiB")
        1572864
    """
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", value.lower())
        unit_bytes = None if match is None else _UNITS.get(match[2] or "b")
        if match is None or unit_bytes is None:
            raise _wrong(name, value, 'an int, or a text such as "64MB" or "16MiB"')
        num_bytes = Fraction(match[1]) * unit_bytes
        if num_bytes.denominator != 1:
            raise _wrong(name, value, "a whole number of bytes")
        return int(num_bytes)
    return _count(value, name)


def _wrong(name: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(
        format_problem(
            f"ZeroConfig({name}={value!r}) is not valid.", (), f"pass {wanted}."
        )
    )


def _texts(value: object, name: str, wanted: str) -> tuple[str, ...]:
    """Returns one text or several as a tuple."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise _wrong(name, value, wanted)
    texts: list[str] = []
    for entry in cast(Iterable[object], value):
        if not isinstance(entry, str):
            raise _wrong(name, cast(object, value), wanted)
        texts.append(entry)
    return tuple(texts)


def _count(value: object, name: str) -> int:
    wanted = "a whole number, 0 or more"
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise _wrong(name, value, wanted)
    number = value.__index__()
    if number < 0:
        raise _wrong(name, value, wanted)
    return number


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, value, "True or False")
    return value


def _choice(value: object, choices: tuple[str, ...], name: str) -> str:
    if not isinstance(value, str) or value not in choices:
        raise _wrong(name, value, f"one of {', '.join(map(repr, choices))}")
    return value


def _axis(value: object, name: str) -> str | tuple[str, ...]:
    wanted = "the name of a mesh axis, or several different names"
    names = _texts(value, name, wanted)
    if not names or not all(names) or len(set(names)) != len(names):
        raise _wrong(name, value, wanted)
    return names[0] if len(names) == 1 else names


def _selector(value: object) -> ParamsSelector | None:
    if value is None:
        return None
    if callable(value) and not isinstance(value, type):
        return cast(Callable[[str], bool], value)
    wanted = "a regular expression, several, or a predicate of a leaf's path"
    patterns = _texts(value, "params", wanted)
    if not patterns:
        raise _wrong("params", value, wanted)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                format_problem(
                    f"ZeroConfig(params=...): {pattern!r} is not a regular "
                    f"expression: {error}.",
                    (),
                    "escape brackets and dots, e.g. r\"\\['kernel'\\]\".",
                )
            ) from error
    return patterns[0] if len(patterns) == 1 else patterns


def _compiler_options(value: object) -> tuple[tuple[str, CompilerOption], ...]:
    wanted = "a mapping of XLA option names to bools, ints, floats or texts"
    if isinstance(value, str):
        raise _wrong("compiler_options", value, wanted)
    given: Any = () if value is None else value
    try:
        options = cast(dict[object, object], dict(given))
    except (TypeError, ValueError):
        raise _wrong("compiler_options", value, wanted) from None
    pairs: list[tuple[str, CompilerOption]] = []
    for key, option in options.items():
        if not isinstance(key, str) or not isinstance(option, CompilerOption):
            raise _wrong("compiler_options", value, wanted)
        pairs.append((key, option))
    return tuple(sorted(pairs))


def _pass_names(value: object) -> tuple[str, ...]:
    wanted = f"a tuple of names out of {', '.join(map(repr, PASS_NAMES))}"
    if isinstance(value, str):
        raise _wrong("disable_passes", value, wanted)
    names = _texts(value, "disable_passes", wanted)
    if unknown := tuple(name for name in names if name not in PASS_NAMES):
        raise _wrong("disable_passes", unknown, wanted)
    return tuple(name for name in PASS_NAMES if name in names)
