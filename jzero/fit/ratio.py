"""The smallest share of the state in host memory with which a step fits.

Lives here: `fit_offload`. May import: step and below. Read next:
`jzero/plan/host.py`, which chooses the leaves of a share.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jzero.audit.numbers import format_size
from jzero.config import ZeroConfig
from jzero.errors import ConfigError
from jzero.offload import Offload
from jzero.step import TrainStep

__all__ = ["fit_offload"]

_MAX_COMPILES = 6
_LEAST = 0.001


def fit_offload(step: TrainStep, *args: Any, **kwargs: Any) -> TrainStep:
    """Finds the ratio of `Offload(ratio="auto", device_bytes=...)` by compiling.

    Offloads everything first; what of the budget that leaves says how much can come
    back to the device. Compiled peaks correct the estimate, in at most 6 compiles.

    Args:
        step: A step whose config has such an `Offload`.
        *args: As for a call; `jax.ShapeDtypeStruct`s will do, nothing is allocated.
        **kwargs: Likewise.

    Returns:
        The same step with the smallest ratio found that fits.

    Raises:
        ConfigError: The config has no ratio to be found, or the step does not fit even
            with everything in host memory; the text says by how much.

    Source: Twin-Flow of ZeRO-Offload++, which takes the ratio as given.

    Example:
        >>> import jax, jax.numpy as jnp, jzero
        >>> offload = jzero.Offload(params="host", ratio="auto", device_bytes="1GB")
        >>> step = jzero.shard_train_step(
        ...     lambda w, x: (w - x.mean(), x.sum()),
        ...     config=jzero.ZeroConfig(offload=offload),
        ... )
        >>> shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 64), (8, 4))]
        >>> jzero.fit_offload(step, *shapes).config.offload
    """
    config = step.config
    offload = config.offload
    if offload is None or offload.ratio != "auto" or offload.device_bytes is None:
        raise ConfigError(
            "fit_offload: the config of this step leaves no ratio to be found.\n"
            'Remedy: Offload(..., ratio="auto", device_bytes="80GB").'
        )
    budget_bytes = offload.device_bytes
    without = replace(config, offload=None)
    if _peak_bytes(step.with_config(without), args, kwargs) <= budget_bytes:
        return step.with_config(without)
    whole = _with_ratio(config, offload, 1.0)
    best = step.with_config(whole)
    peak_bytes = _peak_bytes(best, args, kwargs)
    if peak_bytes > budget_bytes:
        raise ConfigError(
            f"fit_offload: with all that may go in host memory a device still needs "
            f"{format_size(peak_bytes)} of {format_size(budget_bytes)}, "
            f"{format_size(peak_bytes - budget_bytes)} too much.\n"
            "Remedy: a smaller batch or window, stage 3, more devices, or "
            'Offload(optimizer="host", params="host").'
        )
    moved_bytes = best.plan(*args, **kwargs).host_bytes
    fits, fails = 1.0, 0.0
    guess = 1.0 - (budget_bytes - peak_bytes) / max(moved_bytes, 1)
    for _ in range(_MAX_COMPILES - 2):
        ratio = min(max(guess, fails + _LEAST), fits)
        trial = step.with_config(_with_ratio(config, offload, ratio))
        on_host = trial.plan(*args, **kwargs).host_bytes
        if on_host == best.plan(*args, **kwargs).host_bytes:
            break
        if _peak_bytes(trial, args, kwargs) <= budget_bytes:
            best, fits = trial, ratio
            guess = (fails + fits) / 2
        else:
            fails = ratio
            guess = (fails + fits) / 2
        if fits - fails < 0.02:
            break
    return best


def _with_ratio(config: ZeroConfig, offload: Offload, ratio: float) -> ZeroConfig:
    return replace(config, offload=replace(offload, ratio=ratio, device_bytes=None))


def _peak_bytes(step: TrainStep, args: Any, kwargs: Any) -> int:
    quiet = replace(step.config, on_finding="ignore")
    compiled = step.with_config(quiet).compile(*args, **kwargs)
    return compiled.report().memory.device_peak_bytes
