"""The cheapest configuration that fits, and the largest batch, in few compiles.

Lives here: `fit_job` and its record. A stage is not compiled if what it must hold by
the plan is too much already; the batch grows along the line through two compiles. May
import: `job`. Read next: `jzero/cli/app.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil

from jax.sharding import Mesh

from jzero.config import ZeroConfig
from jzero.fit.job import Job, Trial, plan_job, try_job
from jzero.plan.plan import Plan

__all__ = ["Fit", "Skipped", "fit_job", "least_bytes"]

_STAGES = (0, 1, 2, 3)
_MAX_GROWTH = 256
# Of the smallest windows, at the price of gathers that wait.
_TIGHT = {"reduce_window_bytes": 0, "reuse_window_bytes": 0, "prefetch_bytes": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A stage that was not compiled.

    Attributes:
        stage: Which.
        least_bytes: What it must hold on a device, whatever the compiler does.
    """

    stage: int
    least_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What was tried and what to take.

    Attributes:
        trials: Everything that was compiled, in order.
        skipped: Stages that cannot fit.
        chosen: Least communication that fits, with the largest batch; None if
            nothing does.
        hbm_bytes: Memory of a device.
        limit_bytes: Of it, what may be used.
    """

    trials: tuple[Trial, ...]
    skipped: tuple[Skipped, ...]
    chosen: Trial | None
    hbm_bytes: int
    limit_bytes: int

    def fits(self, trial: Trial) -> bool:
        """Says whether a trial is within the limit."""
        return trial.peak_bytes <= self.limit_bytes

    @property
    def python(self) -> str:
        """The line of Python that gives the chosen configuration."""
        if self.chosen is None:
            return ""
        return write_python(self.chosen)

    @property
    def missing_bytes(self) -> int:
        """By how much the nearest trial misses; 0 if something fits."""
        if self.chosen is not None:
            return 0
        peaks = [trial.peak_bytes for trial in self.trials]
        peaks = peaks or [skipped.least_bytes for skipped in self.skipped]
        return min(peaks, default=0) - self.limit_bytes

    @property
    def advice(self) -> str:
        """What would fit, if nothing does."""
        if self.chosen is not None or not self.trials:
            return "" if self.chosen is not None else _more_devices(self)
        nearest = min(self.trials, key=lambda trial: trial.peak_bytes)
        memory = nearest.compiled.report().memory
        rest_bytes = self.limit_bytes - memory.temp_bytes
        if rest_bytes <= 0:
            return (
                f"temporaries alone take {memory.temp_bytes / 1e9:.1f} GB: "
                "rematerialize (jax.checkpoint, nn.remat), shorten the sequence, or "
                f"take devices with {ceil(nearest.peak_bytes / 1e9)} GB"
            )
        times = ceil(10 * memory.argument_bytes / rest_bytes) / 10
        return (
            f"{times:g} times as many devices, or devices with "
            f"{ceil(nearest.peak_bytes / 1e9)} GB"
        )


@dataclass(slots=True)
class _Search:
    job: Job
    mesh: Mesh
    limit_bytes: int
    max_compiles: int
    progress: Callable[[str], None]
    trials: list[Trial] = field(default_factory=list)

    @property
    def is_spent(self) -> bool:
        return len(self.trials) >= self.max_compiles

    def attempt(self, stage: int, rows: int, config: ZeroConfig) -> Trial:
        self.progress(f"compiling stage {stage}, {rows} rows on each device")
        trial = try_job(self.job, self.mesh, stage=stage, config=config, num_rows=rows)
        self.trials.append(trial)
        return trial

    def fits(self, trial: Trial) -> bool:
        return trial.peak_bytes <= self.limit_bytes


def fit_job(
    job: Job,
    mesh: Mesh,
    *,
    hbm_bytes: int,
    headroom: float = 0.08,
    max_compiles: int = 8,
    config: ZeroConfig | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Fit:
    """Searches stages, windows and batch sizes for what fits.

    Args:
        job: What to train; its batch is the smallest that is wanted.
        mesh: Devices, there or not.
        hbm_bytes: Memory of one device.
        headroom: Part of it to leave free, for fragments and the runtime.
        max_compiles: Compile no more often.
        config: Settings to start from.
        progress: Called with a text before each compile.

    Returns:
        All trials, and the choice: of those that fit, the stage that sends least; of
        stages that send alike, the one of the shortest estimated time per row.
    """
    start = config or ZeroConfig()
    limit_bytes = int(hbm_bytes * (1 - headroom))
    search = _Search(job, mesh, limit_bytes, max_compiles, progress)
    skipped: list[Skipped] = []
    for stage in _STAGES:
        progress(f"planning stage {stage}")
        least = least_bytes(plan_job(job, mesh, stage=stage, config=start))
        if least > limit_bytes:
            skipped.append(Skipped(stage=stage, least_bytes=least))
        elif len(search.trials) < max_compiles - 3:
            search.attempt(stage, job.num_rows, start)
    if not any(map(search.fits, search.trials)):
        _tighten(search, start, [s.stage for s in skipped])
    _grow(search)
    fitting = [trial for trial in search.trials if search.fits(trial)]
    return Fit(
        trials=tuple(search.trials),
        skipped=tuple(skipped),
        chosen=min(fitting, key=_cost) if fitting else None,
        hbm_bytes=hbm_bytes,
        limit_bytes=limit_bytes,
    )


def least_bytes(plan: Plan) -> int:
    """Returns what a step must hold on a device, whatever the compiler does.

    The state at rest and, where parameters are whole in a step, one copy of them and
    of their gradients in 16 bits.
    """
    whole = plan.placement.gather in ("none", "once") and plan.placement.is_sharded
    elems = sum(x.size_elems for x in plan.state if x.role == "parameter")
    return plan.local_bytes + (2 * elems if whole else 0)


def write_python(trial: Trial) -> str:
    """Writes the line of Python that gives a configuration."""
    usual = ZeroConfig()
    changed = [
        f"{name}={getattr(trial.config, name)!r}"
        for name in ZeroConfig.__dataclass_fields__
        if getattr(trial.config, name) != getattr(usual, name)
    ]
    config = f", config=jzero.ZeroConfig({', '.join(changed)})" if changed else ""
    return f"jzero.shard_train_step(step_fn, stage={trial.stage}{config})"


def _tighten(search: _Search, config: ZeroConfig, skipped: list[int]) -> None:
    """Tries the smallest windows, and then the smallest batch."""
    stage = max(s for s in _STAGES)
    if stage in skipped or search.is_spent:
        return
    tight = replace(config, **_TIGHT)
    trial = search.attempt(stage, search.job.num_rows, tight)
    if not search.fits(trial) and search.job.num_rows > 1 and not search.is_spent:
        search.attempt(stage, 1, tight)


def _grow(search: _Search) -> None:
    """Enlarges the batch of the cheapest trial along the line through two."""
    fitting = [trial for trial in search.trials if search.fits(trial)]
    if not fitting or search.is_spent:
        return
    first = min(fitting, key=_cost)
    low, high = first, search.attempt(first.stage, 2 * first.num_rows, first.config)
    while not search.is_spent:
        slope = (high.peak_bytes - low.peak_bytes) / (high.num_rows - low.num_rows)
        if slope <= 0:
            return
        room = (search.limit_bytes - low.peak_bytes) / slope
        rows = min(low.num_rows + int(room), _MAX_GROWTH * first.num_rows)
        done = {t.num_rows for t in search.trials if t.stage == first.stage}
        if rows in done or rows <= first.num_rows:
            return
        trial = search.attempt(first.stage, rows, first.config)
        if search.fits(trial):
            return
        low, high = max((low, high), key=_fitting_rows(search)), trial


def _fitting_rows(search: _Search) -> Callable[[Trial], int]:
    return lambda trial: trial.num_rows if search.fits(trial) else -trial.num_rows


def _cost(trial: Trial) -> tuple[float, float]:
    """Bytes sent in units of the formula's least, then estimated time per row."""
    report = trial.compiled.report()
    gathers = {"none": 2, "once": 2, "at_use": 3}[report.plan.placement.gather]
    return gathers, report.timeline.seconds / trial.num_rows


def _more_devices(fit: Fit) -> str:
    least = min((s.least_bytes for s in fit.skipped), default=0)
    return f"devices with more than {ceil(least / 1e9)} GB, or more of them"
