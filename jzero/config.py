"""`ZeroConfig`: every setting besides the stage and the mesh.

Lives here: the one frozen record of settings and its validation. May import:
`errors`. Read next: `plan/stages.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

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
    "gather_at_use",
    "window",
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


def _count(value: object, name: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong(name, value, "a whole number, 0 or more")
    number = value.__index__()  # type: ignore[attr-defined]
    if number < 0:
        raise _wrong(name, value, "a whole number, 0 or more")
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
    names = (value,) if isinstance(value, str) else value
    wanted = "the name of a mesh axis, or several different names"
    if not isinstance(names, Iterable):
        raise _wrong(name, value, wanted)
    names = tuple(names)
    if not names or len(set(map(repr, names))) != len(names):
        raise _wrong(name, value, wanted)
    for entry in names:
        if not isinstance(entry, str) or not entry:
            raise _wrong(name, value, wanted)
    return names[0] if len(names) == 1 else names


def _selector(value: object) -> ParamsSelector | None:
    if value is None or (callable(value) and not isinstance(value, type)):
        return value  # type: ignore[return-value]
    wanted = "a regular expression, several, or a predicate of a leaf's path"
    if not isinstance(value, str) and not isinstance(value, Iterable):
        raise _wrong("params", value, wanted)
    patterns = (value,) if isinstance(value, str) else tuple(value)
    if not patterns:
        raise _wrong("params", value, wanted)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise _wrong("params", value, wanted)
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
    return value if isinstance(value, str) else patterns


def _compiler_options(value: object) -> tuple[tuple[str, CompilerOption], ...]:
    if value is None:
        return ()
    wanted = "a mapping of XLA option names to bools, ints, floats or texts"
    if not isinstance(value, Mapping | Iterable) or isinstance(value, str):
        raise _wrong("compiler_options", value, wanted)
    try:
        pairs = dict(value)
    except (TypeError, ValueError):
        raise _wrong("compiler_options", value, wanted) from None
    for key, option in pairs.items():
        if not isinstance(key, str) or not isinstance(option, CompilerOption):
            raise _wrong("compiler_options", value, wanted)
    return tuple(sorted(pairs.items()))


def _pass_names(value: object) -> tuple[str, ...]:
    wanted = f"names out of {', '.join(map(repr, PASS_NAMES))}"
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise _wrong("disable_passes", value, f"a tuple of {wanted}")
    names = tuple(value)
    if unknown := [name for name in names if name not in PASS_NAMES]:
        raise _wrong("disable_passes", tuple(unknown), wanted)
    return tuple(name for name in PASS_NAMES if name in names)
