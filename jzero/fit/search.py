"""The cheapest configuration that fits, and the largest batch, in few compiles.

Lives here: `fit_job`. From the stage that holds least to the one that sends least, it
compiles what its plan and the compiled ones do not rule out; if nothing fits it moves
state to host memory. Then it tries the other
setting of remat, grows the batch along the line through two compiles, and tries a
larger persistence threshold, where these promise a faster step. May import: `job`,
`predict`, `result`. Read next: `jzero/cli/app.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from jax.sharding import Mesh

from jzero.config import ZeroConfig
from jzero.fit.job import Job, Trial, plan_job, try_job
from jzero.fit.predict import (
    beyond_bytes,
    least_bytes,
    pick_whole,
    predict_bytes,
)
from jzero.fit.result import Fit, Skipped
from jzero.offload import Offload

__all__ = ["THRESHOLDS", "fit_job"]

THRESHOLDS = (0, 100_000, 1_000_000)
"""Persistence thresholds that are tried beside the default: none, if memory is short;
the others, if leaves kept whole make a step send less."""

_STAGES = (0, 1, 2, 3)
_MAX_GROWTH = 256
# Of the smallest windows, at the price of gathers that wait.
_TIGHT = {"reduce_window_bytes": 0, "reuse_window_bytes": 0, "prefetch_bytes": 0}
_OFFLOADS = (
    Offload(optimizer="host"),
    Offload(optimizer="host", params="host"),
)
# A prediction may be wrong by this much before it rules anything out.
_SLACK = 1.05
# Times this close are alike: they are estimates.
_ALIKE = 1.05


@dataclass(slots=True)
class _Search:
    mesh: Mesh
    limit_bytes: int
    max_compiles: int
    progress: Callable[[str], None]
    trials: list[Trial] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def is_spent(self) -> bool:
        return len(self.trials) >= self.max_compiles

    def attempt(self, job: Job, stage: int, rows: int, config: ZeroConfig) -> Trial:
        remat = "" if job.remat is None else f", remat={job.remat}"
        self.progress(f"compiling stage {stage}, {rows} rows on each device{remat}")
        trial = try_job(job, self.mesh, stage=stage, config=config, num_rows=rows)
        self.trials.append(trial)
        return trial

    def fits(self, trial: Trial) -> bool:
        return trial.peak_bytes <= self.limit_bytes

    def best(self) -> Trial | None:
        """Of what fits: the least communication, the shortest time, the most rows."""
        fitting = [trial for trial in self.trials if self.fits(trial)]
        if not fitting:
            return None
        fewest = min(map(_num_transfers, fitting))
        same = [t for t in fitting if _num_transfers(t) == fewest]
        shortest = min(map(_row_seconds, same))
        alike = [t for t in same if _row_seconds(t) <= _ALIKE * shortest]
        return min(alike, key=lambda t: (-t.num_rows, t.peak_bytes))


def fit_job(
    job: Job,
    mesh: Mesh,
    *,
    hbm_bytes: int,
    headroom: float = 0.08,
    max_compiles: int = 8,
    config: ZeroConfig | None = None,
    variants: Sequence[Job] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> Fit:
    """Searches stages, windows, thresholds, remat and batch sizes for what fits.

    Args:
        job: What to train; its batch is the smallest that is wanted.
        mesh: Devices, there or not.
        hbm_bytes: Memory of one device.
        headroom: Part of it to leave free, for fragments and the runtime.
        max_compiles: Compile no more often.
        config: Settings to start from. A persistence threshold other than the
            default stays as it is.
        variants: The same job with other settings of remat, as `load_variants`
            returns them.
        progress: Called with a text before each compile.

    Returns:
        All trials, and the choice: of those that fit, the stage that sends least; of
        stages that send alike, the one of the shortest estimated time per row.
    """
    start = config or ZeroConfig()
    limit_bytes = int(hbm_bytes * (1 - headroom))
    search = _Search(mesh, limit_bytes, max_compiles, progress)
    saving = [variant for variant in variants if variant.remat and not job.remat]
    surveyed = job
    for candidate in (job, *saving):
        surveyed = candidate
        _survey(search, candidate, start)
        if search.best() is not None:
            break
    else:
        _tighten(search, surveyed, start)
        _offload(search, surveyed, start)
    jobs = {candidate.remat: candidate for candidate in (job, *variants)}
    _switch_remat(search, jobs)
    _grow(search, jobs)
    _persist(search, jobs)
    return Fit(
        trials=tuple(search.trials),
        skipped=tuple(search.skipped),
        chosen=search.best(),
        hbm_bytes=hbm_bytes,
        limit_bytes=limit_bytes,
    )


def _survey(search: _Search, job: Job, config: ZeroConfig) -> None:
    """Compiles the stages that may fit, for half of the compiles that there are."""
    budget = max(2, search.max_compiles // 2) + len(search.trials)
    for stage in reversed(_STAGES):
        search.progress(f"planning stage {stage}")
        plan = plan_job(job, search.mesh, stage=stage, config=config)
        least = least_bytes(plan)
        predicted = predict_bytes(
            search.trials, plan, num_rows=job.num_rows, remat=job.remat
        )
        skip = Skipped(stage=stage, least_bytes=least, remat=job.remat)
        if least > search.limit_bytes:
            search.skipped.append(skip)
        elif predicted is not None and predicted > _SLACK * search.limit_bytes:
            search.skipped.append(
                replace(skip, least_bytes=predicted, is_predicted=True)
            )
        elif len(search.trials) < budget and not search.is_spent:
            search.attempt(job, stage, job.num_rows, config)


def _tighten(search: _Search, job: Job, config: ZeroConfig) -> None:
    """Tries the smallest windows and no whole leaves, and then the smallest batch."""
    stage = max(_STAGES)
    never = {s.stage for s in search.skipped if not s.is_predicted}
    if stage in never or search.is_spent:
        return
    tight = replace(config, **_TIGHT)
    if _is_free(config):
        tight = replace(tight, persistence_threshold=min(THRESHOLDS))
    trial = search.attempt(job, stage, job.num_rows, tight)
    if not search.fits(trial) and job.num_rows > 1 and not search.is_spent:
        search.attempt(job, stage, 1, tight)


def _offload(search: _Search, job: Job, config: ZeroConfig) -> None:
    """Moves state to host memory, the optimizer's first, if nothing else fits."""
    if config.offload is not None:
        return
    for offload in _OFFLOADS:
        if search.best() is not None or search.is_spent:
            return
        moved = replace(config, offload=offload)
        plan = plan_job(job, search.mesh, stage=max(_STAGES), config=moved)
        if least_bytes(plan) <= search.limit_bytes:
            search.attempt(job, max(_STAGES), job.num_rows, moved)


def _switch_remat(search: _Search, jobs: dict[bool | None, Job]) -> None:
    """Tries the other setting of remat, unless it can only make the step slower."""
    best = search.best()
    if best is None or best.remat is None or search.is_spent:
        return
    other = jobs.get(not best.remat)
    tried = {(t.stage, t.config, t.num_rows, t.remat) for t in search.trials}
    if other is None or (best.stage, best.config, best.num_rows, other.remat) in tried:
        return
    # Remat computes more, so it pays where larger batches hide the network.
    is_bound = _least_row_seconds(best) * _ALIKE >= _row_seconds(best)
    if not (other.remat and is_bound):
        search.attempt(other, best.stage, best.num_rows, best.config)


def _grow(search: _Search, jobs: dict[bool | None, Job]) -> None:
    """Enlarges the batch of the best, and of its rivals that could still win."""
    best = search.best()
    if best is None:
        return
    rivals = [
        trial
        for trial in search.trials
        if search.fits(trial)
        and trial is not best
        and (trial.stage, trial.config) == (best.stage, best.config)
        and trial.remat != best.remat
    ]
    for first in (best, *rivals):
        leader = search.best()
        if first is best or (
            leader is not None and _least_row_seconds(first) < _row_seconds(leader)
        ):
            _grow_one(search, jobs[first.remat], first)


def _grow_one(search: _Search, job: Job, first: Trial) -> None:
    """Enlarges a batch along the line through two compiles."""
    low, slope = first, beyond_bytes(first) / first.num_rows
    tried = {first.num_rows: first}
    while not search.is_spent and slope > 0:
        room = (search.limit_bytes - low.peak_bytes) / slope
        rows = min(low.num_rows + int(room), _MAX_GROWTH * first.num_rows)
        # The first line is too steep: it takes all for activations.
        rows = max(rows, 2 * first.num_rows) if len(tried) == 1 else rows
        if rows in tried or rows <= first.num_rows:
            return
        trial = search.attempt(job, first.stage, rows, first.config)
        tried[rows] = trial
        # Up to a batch that does not fit, the line is that of the last rows.
        start = first if search.fits(trial) else low
        slope = (trial.peak_bytes - start.peak_bytes) / (rows - start.num_rows)
        low = trial if search.fits(trial) else low


def _persist(search: _Search, jobs: dict[bool | None, Job]) -> None:
    """Keeps more leaves whole, if that makes the best send less and still fits."""
    best = search.best()
    if best is None or search.is_spent or not _is_free(best.config):
        return
    job = jobs[best.remat]
    plans = [
        plan_job(
            job,
            search.mesh,
            stage=best.stage,
            config=replace(best.config, persistence_threshold=threshold),
        )
        for threshold in THRESHOLDS
    ]
    picked = pick_whole(best, plans, limit_bytes=search.limit_bytes)
    if picked is not None:
        # A plan made for looking on warns of nothing; a user's should.
        config = replace(picked, on_finding=best.config.on_finding)
        search.attempt(job, best.stage, best.num_rows, config)


def _is_free(config: ZeroConfig) -> bool:
    """Says whether the threshold is the default, and so may be searched."""
    return config.persistence_threshold == ZeroConfig().persistence_threshold


def _num_transfers(trial: Trial) -> int:
    """Of the parameters, gathers and reductions together: the formula's units."""
    gather = trial.compiled.report().plan.placement.gather
    return {"none": 2, "once": 2, "at_use": 3}[gather]


def _row_seconds(trial: Trial) -> float:
    return trial.compiled.report().timeline.seconds / trial.num_rows


def _least_row_seconds(trial: Trial) -> float:
    """What a row would take if nothing waited for the network."""
    return trial.compiled.report().timeline.compute_seconds / trial.num_rows
