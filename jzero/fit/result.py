"""What was tried, what to take, and what would fit if nothing does.

Lives here: `Fit` and its parts. May import: `job`. Read next: `search.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from jzero.config import ZeroConfig
from jzero.fit.job import Trial
from jzero.offload import Offload

__all__ = ["Fit", "Skipped", "write_python"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A stage that was not compiled, since it cannot fit.

    Attributes:
        stage: Which.
        least_bytes: What it must hold on a device, whatever the compiler does; or
            about how much it needs, if predicted.
        is_predicted: The bytes are predicted from another stage that was compiled.
        remat: Whether the job rematerializes; None if it has no such setting.
    """

    stage: int
    least_bytes: int
    is_predicted: bool = False
    remat: bool | None = None


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
        if self.chosen is not None:
            return ""
        if not self.trials:
            least = min((s.least_bytes for s in self.skipped), default=0)
            return f"devices with more than {ceil(least / 1e9)} GB, or more of them"
        nearest = min(self.trials, key=lambda trial: trial.peak_bytes)
        memory = nearest.compiled.report().memory
        enough = f"devices with {ceil(nearest.peak_bytes / 1e9)} GB"
        rest_bytes = self.limit_bytes - memory.temp_bytes
        if rest_bytes > 0:
            times = ceil(10 * memory.argument_bytes / rest_bytes) / 10
            return f"{times:g} times as many devices, or {enough}"
        fewer = "shorten the sequence"
        if not nearest.remat:
            fewer = f"rematerialize (jax.checkpoint, nn.remat), {fewer}"
        return (
            f"temporaries alone take {memory.temp_bytes / 1e9:.1f} GB: {fewer}, or "
            f"take {enough}"
        )


def _changed(value: ZeroConfig | Offload, usual: ZeroConfig | Offload) -> str:
    """The arguments in which settings differ from the usual ones."""
    arguments: list[str] = []
    for name in type(value).__dataclass_fields__:
        setting = getattr(value, name)
        if setting == getattr(usual, name):
            continue
        if isinstance(setting, Offload):
            arguments.append(f"{name}=jzero.Offload({_changed(setting, Offload())})")
        else:
            arguments.append(f"{name}={setting!r}")
    return ", ".join(arguments)


def write_python(trial: Trial) -> str:
    """Writes the line of Python that gives a configuration."""
    changed = _changed(trial.config, ZeroConfig())
    config = f", config=jzero.ZeroConfig({changed})" if changed else ""
    line = f"jzero.shard_train_step(step_fn, stage={trial.stage}{config})"
    if trial.remat is None:
        return line
    return f"{line}  # step_fn from build(remat={trial.remat})"
