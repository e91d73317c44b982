"""What a person wants to train, as shapes: a step, its state, one device's batch.

A file of theirs has a function

    def build(**settings):
        return step_fn, create_state, sample_args, batch

where `create_state(*sample_args)` makes the state (or the tuple of state arguments)
and `batch` is what ONE device takes in a step (or the tuple of the other arguments).
Arrays and `jax.ShapeDtypeStruct`s will do; nothing is computed.

A setting named `remat` that is True or False by default says that the function can
build the step with and without rematerialization; `jzero fit` then tries both.

Lives here: `Job`, `load_job` and `load_variants`, which read such a file, and
`try_job`, which compiles it once. May import: api and below. Read next: `search.py`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh

from jzero.api import shard_train_step
from jzero.audit.compiled_step import CompiledStep
from jzero.config import ZeroConfig
from jzero.errors import JzeroError, format_problem
from jzero.plan.plan import Plan
from jzero.step import TrainStep

__all__ = [
    "Job",
    "JobError",
    "Trial",
    "load_job",
    "load_variants",
    "plan_job",
    "try_job",
]

_CONVENTION = (
    "build(**settings) must return (step_fn, create_state, sample_args, batch); "
    "create_state(*sample_args) makes the state, batch is what one device takes"
)


class JobError(JzeroError, ValueError):
    """A file does not hold a `build` that can be planned for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training step with the shapes of its arguments.

    Attributes:
        name: Where it comes from.
        step_fn: The user's step.
        state: Its state arguments, as shapes.
        batch: Its other arguments, as shapes, for one device.
        num_rows: Length of dim 0 of the batch of one device.
        remat: Whether the step rematerializes; None if its file does not say.
    """

    name: str
    step_fn: Callable[..., Any]
    state: tuple[Any, ...]
    batch: tuple[Any, ...]
    num_rows: int
    remat: bool | None = None

    def arguments(self, num_devices: int, num_rows: int | None = None) -> Any:
        """Returns the step's arguments for so many devices and rows of each."""
        rows = (num_rows or self.num_rows) * num_devices

        def scale(leaf: Any) -> Any:
            if not leaf.shape or leaf.shape[0] != self.num_rows:
                return leaf
            return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype)

        return (*self.state, *jax.tree.map(scale, self.batch))

    @property
    def num_state_bytes(self) -> int:
        """Bytes of the whole state."""
        leaves = jax.tree.leaves(self.state)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One configuration, compiled.

    Attributes:
        stage: The ZeRO stage.
        config: The settings.
        num_rows: Rows of the batch on one device.
        remat: Whether the step rematerializes; None if its file does not say.
        compiled: The compiled step.
        seconds: Of tracing, planning, lowering, compiling and reading it.
    """

    stage: int
    config: ZeroConfig
    num_rows: int
    remat: bool | None
    compiled: CompiledStep
    seconds: float

    @property
    def peak_bytes(self) -> int:
        """What the step needs of a device's memory."""
        return self.compiled.report().memory.device_peak_bytes

    @property
    def host_bytes(self) -> int:
        """What it needs of the host's memory, for each device."""
        return self.compiled.report().memory.host_peak_bytes


def load_job(target: str, settings: Mapping[str, Any]) -> Job:
    """Loads `file.py:function` or `package.module:function` and calls it.

    Args:
        target: Where the function is.
        settings: Its keyword arguments.

    Returns:
        The job, as shapes.

    Raises:
        JobError: There is no such file or function, it takes no such setting, or it
            returns something else.
    """
    return _build_job(target, _find_build(target), settings)


def load_variants(target: str, settings: Mapping[str, Any]) -> tuple[Job, ...]:
    """Loads a job with and without rematerialization, where its file offers both.

    Args:
        target: As for `load_job`.
        settings: As for `load_job`. One of them named `remat` decides it.

    Returns:
        The job as it is by default and then, if the function has a setting `remat`
        that is True or False by default and is not among `settings`, the other way.

    Raises:
        JobError: As `load_job`.
    """
    build = _find_build(target)
    setting = inspect.signature(build).parameters.get("remat")
    usual = setting.default if setting is not None else None
    if not isinstance(usual, bool) or "remat" in settings:
        return (_build_job(target, build, settings),)
    return tuple(
        replace(_build_job(target, build, {**settings, "remat": remat}), remat=remat)
        for remat in (usual, not usual)
    )


def _find_build(target: str) -> Callable[..., Any]:
    place, _, function = target.rpartition(":")
    if not place or not function.isidentifier():
        raise _wrong(f"{target!r} names no function.", "write file.py:build")
    module = _import(place)
    build = getattr(module, function, None)
    if not callable(build):
        names = sorted(
            name for name, value in vars(module).items() if inspect.isfunction(value)
        )
        raise _wrong(
            f"{place} has no function {function!r}; it has {', '.join(names)}.",
            _CONVENTION,
        )
    return build


def _build_job(
    target: str, build: Callable[..., Any], settings: Mapping[str, Any]
) -> Job:
    _check_settings(target, build, settings)
    built: Any = build(**settings)
    if not isinstance(built, tuple) or len(cast(tuple[Any, ...], built)) != 4:
        raise _wrong(f"{target} returned {_describe(built)}.", _CONVENTION)
    step_fn, create_state, sample_args, batch = cast(tuple[Any, ...], built)
    wrong = [
        name
        for name, is_right in (
            ("step_fn is not callable", callable(step_fn)),
            ("create_state is not callable", callable(create_state)),
            (
                "sample_args is not a tuple or list",
                isinstance(sample_args, tuple | list),
            ),
        )
        if not is_right
    ]
    if wrong:
        raise _wrong(f"{target}: {', '.join(wrong)}.", _CONVENTION)
    state = jax.eval_shape(create_state, *sample_args)
    return _make_job(target, step_fn, state, batch)


def _make_job(name: str, step_fn: Callable[..., Any], state: Any, batch: Any) -> Job:
    others = batch if type(batch) is tuple else (batch,)
    shapes = jax.tree.map(_shape, others)
    sizes = [leaf.shape[0] for leaf in jax.tree.leaves(shapes) if leaf.shape]
    if not sizes:
        raise _wrong(f"{name}: the batch has no array with a dim.", _CONVENTION)
    # The first array says how long a batch is; keys and tables may be shorter.
    return Job(
        name=name,
        step_fn=step_fn,
        state=state if type(state) is tuple else (state,),
        batch=shapes,
        num_rows=sizes[0],
    )


def try_job(
    job: Job,
    mesh: Mesh,
    *,
    stage: int,
    config: ZeroConfig | None = None,
    num_rows: int | None = None,
) -> Trial:
    """Compiles a job once.

    Args:
        job: What to train.
        mesh: Devices, there or not.
        stage: The ZeRO stage.
        config: Settings; findings are kept in the report, and neither warn nor raise.
        num_rows: Rows of the batch on one device; None as built.
    """
    start = time.perf_counter()
    config = config or ZeroConfig()
    step = _quiet_step(job, mesh, stage, config)
    num_batch = int(np.prod([mesh.shape[axis] for axis in config.batch_axes]))
    compiled = step.compile(*job.arguments(num_batch, num_rows))
    compiled.report()
    return Trial(
        stage=stage,
        config=config,
        num_rows=num_rows or job.num_rows,
        remat=job.remat,
        compiled=compiled,
        seconds=time.perf_counter() - start,
    )


def plan_job(job: Job, mesh: Mesh, *, stage: int, config: ZeroConfig) -> Plan:
    """Plans a job without compiling it."""
    step = _quiet_step(job, mesh, stage, config)
    num_batch = int(np.prod([mesh.shape[axis] for axis in config.batch_axes]))
    return step.plan(*job.arguments(num_batch))


def _quiet_step(job: Job, mesh: Mesh, stage: int, config: ZeroConfig) -> TrainStep:
    quiet = replace(config, on_finding="ignore")
    return shard_train_step(job.step_fn, stage=stage, mesh=mesh, config=quiet)


def _import(place: str) -> Any:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        path = Path(place).resolve()
        if not path.is_file():
            raise _wrong(f"There is no file {place}.", "check the path")
        # As `python file.py` would, so that it finds the files beside it; and as a
        # module of the folder that the command is run in.
        for folder in (str(path.parent), str(Path.cwd())):
            if folder not in sys.path:
                sys.path.insert(0, folder)
        spec = importlib.util.spec_from_file_location(f"jzero_job_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    except ImportError as error:
        raise _wrong(
            f"{place} cannot be imported: {error}.",
            "run the command from the folder the imports start at, in the "
            "environment that has its packages",
        ) from error


def _check_settings(
    target: str, build: Callable[..., Any], settings: Mapping[str, Any]
) -> None:
    parameters = inspect.signature(build).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY]
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise _wrong(
            f"{target} takes no setting {', '.join(map(repr, unknown))}.",
            f"its settings are {', '.join(known) or 'none'}",
        )


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    aval: Any = jax.typeof(leaf) if not hasattr(leaf, "shape") else leaf
    return jax.ShapeDtypeStruct(aval.shape, jax.dtypes.canonicalize_dtype(aval.dtype))


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{len(cast(tuple[Any, ...], value))} values"
    return f"a {type(value).__name__}"


def _wrong(headline: str, remedy: str) -> JobError:
    return JobError(format_problem(headline, (), f"{remedy}."))
