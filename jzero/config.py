"""`ZeroConfig`: every setting besides the stage and the mesh.

Lives here: the one frozen record of settings and its validation. May import:
`errors`, `checks`, `offload`, pallas_kernels. Read next: `plan/stages.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from jzero.checks import (
    MIB,
    check_choice,
    check_count,
    check_flag,
    check_texts,
    parse_bytes,
    wrong_value,
)
from jzero.errors import ConfigError, format_problem
from jzero.offload import Offload
from pallas_kernels import Backend

__all__ = [
    "PASS_NAMES",
    "CompilerOption",
    "ParamsSelector",
    "ZeroConfig",
]

CompilerOption = bool | int | float | str
ParamsSelector = str | tuple[str, ...] | Callable[[str], bool]

PASS_NAMES: tuple[str, ...] = (
    "spread_batch",
    "reduce_at_birth",
    "window",
    "gather_at_use",
    "offload_activations",
    "offload",
)


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
        offload: What lives in host memory between and during steps; None for nothing.
        kernels: By what the fused updates of `jzero.optim` in the step run, whatever
            `backend` their optimizers were made with; None leaves it to them.
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
    offload: Offload | None
    kernels: Backend | None
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
        reduce_window_bytes: int | str = 16 * MIB,
        reuse_window_bytes: int | str = 32 * MIB,
        prefetch_bytes: int | str = 32 * MIB,
        replicate_params: bool = False,
        params: str | Iterable[str] | Callable[[str], bool] | None = None,
        offload: Offload | None = None,
        kernels: Backend | None = None,
        compiler_options: Mapping[str, CompilerOption]
        | Iterable[tuple[str, CompilerOption]]
        | None = None,
        disable_passes: Iterable[str] = (),
        on_finding: Literal["ignore", "warn", "raise"] = "warn",
    ) -> None:
        left_out = _pass_names(disable_passes)
        values = {
            "axis": _axis(axis, "axis"),
            "batch_axis": None
            if batch_axis is None
            else _axis(batch_axis, "batch_axis"),
            "persistence_threshold": check_count(
                persistence_threshold, "persistence_threshold"
            ),
            "gather_dtype": check_choice(
                gather_dtype, ("compute", "param"), "gather_dtype"
            ),
            "reduce_window_bytes": parse_bytes(
                reduce_window_bytes, "reduce_window_bytes"
            ),
            "reuse_window_bytes": parse_bytes(reuse_window_bytes, "reuse_window_bytes"),
            "prefetch_bytes": parse_bytes(prefetch_bytes, "prefetch_bytes"),
            "replicate_params": check_flag(replicate_params, "replicate_params"),
            "params": _selector(params),
            "offload": _offload(offload),
            "kernels": None
            if kernels is None
            else check_choice(kernels, get_args(Backend), "kernels"),
            "compiler_options": _compiler_options(compiler_options),
            "disable_passes": left_out,
            "on_finding": check_choice(
                on_finding, ("ignore", "warn", "raise"), "on_finding"
            ),
        }
        offloading = [name for name in left_out if name.startswith("offload")]
        if values["offload"] is not None and offloading:
            raise ConfigError(
                f"ZeroConfig(offload=..., disable_passes={tuple(offloading)!r}): "
                "without these passes nothing offloaded is where it is needed.\n"
                "Remedy: leave offload out instead."
            )
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


def _axis(value: object, name: str) -> str | tuple[str, ...]:
    wanted = "the name of a mesh axis, or several different names"
    names = check_texts(value, name, wanted)
    if not names or not all(names) or len(set(names)) != len(names):
        raise wrong_value(name, value, wanted)
    return names[0] if len(names) == 1 else names


def _offload(value: object) -> Offload | None:
    if value is not None and not isinstance(value, Offload):
        raise wrong_value(
            "offload", value, 'an Offload, e.g. Offload(optimizer="host")'
        )
    # Nothing to offload is no offload: one spelling for the rest of the program.
    return value if value is not None and value.is_on else None


def _selector(value: object) -> ParamsSelector | None:
    if value is None:
        return None
    if callable(value) and not isinstance(value, type):
        return cast(Callable[[str], bool], value)
    wanted = "a regular expression, several, or a predicate of a leaf's path"
    patterns = check_texts(value, "params", wanted)
    if not patterns:
        raise wrong_value("params", value, wanted)
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
        raise wrong_value("compiler_options", value, wanted)
    given: Any = () if value is None else value
    try:
        options = cast(dict[object, object], dict(given))
    except (TypeError, ValueError):
        raise wrong_value("compiler_options", value, wanted) from None
    pairs: list[tuple[str, CompilerOption]] = []
    for key, option in options.items():
        if not isinstance(key, str) or not isinstance(option, CompilerOption):
            raise wrong_value("compiler_options", value, wanted)
        pairs.append((key, option))
    return tuple(sorted(pairs))


def _pass_names(value: object) -> tuple[str, ...]:
    wanted = f"a tuple of names out of {', '.join(map(repr, PASS_NAMES))}"
    if isinstance(value, str):
        raise wrong_value("disable_passes", value, wanted)
    names = check_texts(value, "disable_passes", wanted)
    if unknown := tuple(name for name in names if name not in PASS_NAMES):
        raise wrong_value("disable_passes", unknown, wanted)
    return tuple(name for name in PASS_NAMES if name in names)
