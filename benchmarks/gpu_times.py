"""How long updates take, beside XLA, torch and a copy; see `gpu_kernels.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import util
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

import jzero
from pallas_kernels import dequantize_blocks, quantize_blocks

__all__ = ["COPY", "PAIRS", "Pace", "Timing", "timings", "torch_timing"]

COPY = "device copy"
WIDTH = 2**12
CASES: dict[str, dict[str, Any]] = {"AdamW": {}, "AdamW 8-bit": {"state": "int8"}}
PAIRS = (*CASES, "quantize 8", "dequantize 8", "quantize 4", "dequantize 4")
"""What is timed by XLA and by a kernel: `X, XLA` and `X, kernel`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often something is repeated.

    Attributes:
        num_buffers: Sets of arrays that are used in turn, so that no cache holds what
            is read.
        num_rounds: Of which the median counts.
        num_calls: In a round, of which only the last is waited for: starting a call
            takes a part of the time that it runs.
    """

    num_buffers: int = 3
    num_rounds: int = 20
    num_calls: int = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long one pass over all elements takes.

    Attributes:
        name: What was timed.
        seconds: The median.
        num_bytes: What it has to read and write, by design.
    """

    name: str
    seconds: float
    num_bytes: float

    @property
    def gb_per_second(self) -> float:
        """10^9 bytes per second."""
        return self.num_bytes / self.seconds / 1e9


def timings(
    num_elems: int, backend: str, pace: Pace
) -> Iterator[tuple[str, Callable[[], Timing]]]:
    """Yields a name and a function for each thing to time.

    Args:
        num_elems: Parameters.
        backend: Of the kernels.
        pace: How often.
    """
    yield COPY, partial(_time_copy, num_elems, pace)
    if util.find_spec("optax") is not None:
        yield "AdamW, optax", partial(_time_optax, "AdamW, optax", num_elems, pace)
    for name, options in CASES.items():
        # Parameter, gradient and moments, read and written; scales of 256.
        element_bytes = 16 + 4 / 64 if options else 28
        for label, chosen in (("XLA", "xla"), ("kernel", backend)):
            tx = jzero.optim.adamw(1e-2, weight_decay=0.1, backend=chosen, **options)
            row = f"{name}, {label}"
            yield row, partial(_time_update, row, tx, num_elems, element_bytes, pace)
    for bits in (8, 4):
        for label, chosen in (("XLA", "xla"), ("kernel", backend)):
            row = f"quantize {bits}, {label}"
            yield row, partial(_time_quantize, row, num_elems, bits, chosen, pace)
            row = f"dequantize {bits}, {label}"
            yield row, partial(_time_dequantize, row, num_elems, bits, chosen, pace)


def _median_seconds(call: Callable[[int], Any], wait: Any, pace: Pace) -> float:
    for i in range(pace.num_buffers):  # compiles, too
        wait(call(i))
    times = []
    for _ in range(pace.num_rounds):
        start = time.perf_counter()
        last = None
        for i in range(pace.num_calls):
            last = call(i % pace.num_buffers)
        wait(last)
        times.append((time.perf_counter() - start) / pace.num_calls)
    return median(times)


def _full(num_elems: int, value: float) -> jax.Array:
    return jnp.full((num_elems // WIDTH, WIDTH), value, jnp.float32)


def _time_copy(num_elems: int, pace: Pace) -> Timing:
    """A copy of as many bytes as AdamW has to move."""
    size = num_elems * 7 // 2
    arrays = [_full(size, 1.0 + i) for i in range(pace.num_buffers)]
    copy = jax.jit(jnp.copy)
    seconds = _median_seconds(lambda i: copy(arrays[i]), jax.block_until_ready, pace)
    return Timing(name=COPY, seconds=seconds, num_bytes=8.0 * arrays[0].size)


def _time_update(
    name: str, tx: Any, num_elems: int, element_bytes: float, pace: Pace
) -> Timing:
    def apply(grads: Any, state: Any, params: Any) -> Any:
        new_params, new_state = tx.apply(grads, state, params)[:2]
        return new_state, new_params

    return _time_step(name, tx, apply, num_elems, element_bytes, pace)


def _time_optax(name: str, num_elems: int, pace: Pace) -> Timing:
    # By name: optax is no dependency, and need not be there.
    optax = __import__("optax")
    tx = optax.adamw(1e-2, weight_decay=0.1)

    def apply(grads: Any, state: Any, params: Any) -> Any:
        deltas, new_state = tx.update(grads, state, params)
        return new_state, optax.apply_updates(params, deltas)

    return _time_step(name, tx, apply, num_elems, 28, pace)


def _time_step(
    name: str, tx: Any, apply: Any, num_elems: int, element_bytes: float, pace: Pace
) -> Timing:
    step = jax.jit(apply, donate_argnums=(1, 2))
    held: list[Any] = []
    for i in range(pace.num_buffers):
        params = {"w": _full(num_elems, 1.0 + i)}
        held.append((tx.init(params), params))
    grads = {"w": _full(num_elems, 1e-3)}

    def call(i: int) -> Any:
        held[i] = step(grads, *held[i])
        return held[i]

    return Timing(
        name=name,
        seconds=_median_seconds(call, jax.block_until_ready, pace),
        num_bytes=element_bytes * num_elems,
    )


def _ramp(num_elems: int) -> jax.Array:
    return jnp.linspace(-1, 1, num_elems, dtype=jnp.float32).reshape(-1, WIDTH)


def _time_quantize(
    name: str, num_elems: int, bits: Any, backend: str, pace: Pace
) -> Timing:
    arrays = [_ramp(num_elems) * (1.0 + i) for i in range(pace.num_buffers)]
    quantize = jax.jit(partial(quantize_blocks, bits=bits, backend=backend))
    return Timing(
        name=name,
        seconds=_median_seconds(
            lambda i: quantize(arrays[i]), jax.block_until_ready, pace
        ),
        num_bytes=(4 + bits / 8 + 4 / 256) * num_elems,
    )


def _time_dequantize(
    name: str, num_elems: int, bits: Any, backend: str, pace: Pace
) -> Timing:
    arrays = [
        quantize_blocks(_ramp(num_elems) * (1.0 + i), bits=bits)
        for i in range(pace.num_buffers)
    ]
    dequantize = jax.jit(
        partial(dequantize_blocks, length=WIDTH, bits=bits, backend=backend)
    )
    return Timing(
        name=name,
        seconds=_median_seconds(
            lambda i: dequantize(*arrays[i]), jax.block_until_ready, pace
        ),
        num_bytes=(4 + bits / 8 + 4 / 256) * num_elems,
    )


def torch_timing(num_elems: int, pace: Pace) -> Timing:
    """Times torch's fused AdamW, on the GPU that JAX uses as well.

    Raises:
        ImportError: There is no torch.
        RuntimeError: It finds no GPU, or no memory.
    """
    # By name: torch is no dependency, and need not be there.
    torch = __import__("torch")
    held = []
    for i in range(pace.num_buffers):
        param = torch.full((num_elems,), 1.0 + i, device="cuda", requires_grad=True)
        param.grad = torch.full_like(param, 1e-3)
        held.append(torch.optim.AdamW([param], lr=1e-2, fused=True))
    seconds = _median_seconds(
        lambda i: held[i].step(), lambda _: torch.cuda.synchronize(), pace
    )
    return Timing(name="AdamW, torch fused", seconds=seconds, num_bytes=28 * num_elems)
