"""The process that does the work of `gpu_kernels.py`, and may be lost to a kernel.

It writes a line of JSON when something starts and when it ends. A kernel that reads
where it should not, or that never ends, takes its process along; then a new one goes
on behind it.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from benchmarks.gpu_checks import checks
from benchmarks.gpu_times import Pace, Timing, timings, torch_timing
from pallas_kernels.compat import has_mosaic_gpu

__all__ = ["LOST", "items", "work"]

LOST = 3
"""The exit status of a process whose GPU is of no more use to it."""

Item = tuple[str, Callable[[], str | Timing]]


def items(options: Any, *, is_gpu: bool) -> Iterator[Item]:
    """Yields all that is to be done: references first, then checks, then kernels."""
    is_tiny = options.dry_run or not is_gpu
    backend = _backend(is_gpu=is_gpu)
    # Interpreted, a block takes milliseconds.
    shape = (4, 512) if is_tiny else (1024, 4096)
    pace = Pace(num_buffers=2, num_rounds=1, num_calls=1) if is_tiny else Pace()
    num_elems = options.elements or (2**12 if is_tiny else 2**27)
    timed: list[Item] = []
    if not options.checks:
        timed += timings(num_elems, backend, pace)
        if is_gpu:
            timed.append(("AdamW, torch", lambda: torch_timing(num_elems, pace)))
    yield from (item for item in timed if not _is_kernel(item))
    yield from checks(backend, shape, options.seed)
    yield from filter(_is_kernel, timed)


def _is_kernel(item: Item) -> bool:
    return item[0].endswith("kernel")


def _backend(*, is_gpu: bool) -> str:
    if is_gpu:
        return "mosaic_gpu"
    return "mosaic_gpu_interpret" if has_mosaic_gpu() else "pallas_tpu_interpret"


def _say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def work(options: Any, attempted: Sequence[str]) -> int:
    """Does what was not attempted before; returns the exit status."""
    device = jax.devices()[0]
    is_gpu = device.platform == "gpu"
    _say(device=f"{device.device_kind}, JAX {jax.__version__}")
    if not (is_gpu or options.dry_run or options.checks):
        _say(name="an NVIDIA GPU", error="there is none; --dry-run is for anywhere")
        return 0
    for name, run in items(options, is_gpu=is_gpu):
        if name in attempted or not re.search(options.only, name):
            continue
        _say(start=name)
        try:
            result = run()
        except Exception as error:  # whatever it is, the rest shall run
            traceback.print_exc(file=sys.stderr)
            first = (str(error) or "no reason given").splitlines()[0]
            _say(name=name, error=f"{type(error).__name__}: {first}")
            if is_gpu and isinstance(error, jax.errors.JaxRuntimeError):
                return LOST
            continue
        if isinstance(result, str):
            _say(name=name, line=result)
        else:
            _say(name=name, seconds=result.seconds, num_bytes=result.num_bytes)
    _say(end=True)
    return 0
