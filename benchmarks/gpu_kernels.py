"""GPU kernels: checked against float64, then timed beside XLA, torch and a copy.

    python -m benchmarks.gpu_kernels                  # on an NVIDIA GPU: minutes
    python -m benchmarks.gpu_kernels --checks         # anywhere, by the interpreter

Every check has fresh random inputs and memory that was filled with NaN before. Times
are medians over rotating buffers, so that no cache holds what is read. A kernel that
is no faster than what XLA fuses by itself is named as such: then the reference stays
the default for it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import util
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jzero
from jzero.optim.transform import FusedTransformation
from pallas_kernels import AdamW, Scalars, decode, dequantize_blocks, quantize_blocks
from pallas_kernels.blocks import spread, to_blocks

__all__ = ["Timing", "check_all", "main", "render", "time_all"]

BUFFERS, REPEATS = 3, 20
CASES: dict[str, dict[str, Any]] = {
    "AdamW float32": {},
    "AdamW 8-bit": {"state": "int8"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long one update of all parameters takes.

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


def _make(backend: str, **options: Any) -> FusedTransformation:
    return jzero.optim.adamw(1e-2, weight_decay=0.1, backend=backend, **options)


def _poison(num_bytes: int) -> None:
    """Leaves NaN behind in memory that the next results are likely to get."""
    arrays = [jnp.full(max(1, num_bytes // 16), jnp.nan) for _ in range(4)]
    jax.block_until_ready(arrays)


def _decoded(values: Any, scales: Any, sign: Any) -> np.ndarray:
    if scales is None:
        return np.asarray(values, np.float64)
    tile = [n // b for n, b in zip(values.shape, scales.shape, strict=True)]
    blocks = decode(to_blocks(values, tile), sign) * spread(scales)
    return np.asarray(blocks.reshape(values.shape), np.float64)


def check_all(backend: str, shape: tuple[int, int], seed: int) -> list[str]:
    """Runs every kernel once on random inputs.

    Args:
        backend: Of `jzero.optim`.
        shape: Of the parameter.
        seed: Of the inputs.

    Returns:
        One line per kernel.

    Raises:
        AssertionError: A kernel is wrong.
    """
    rng = np.random.default_rng(seed)
    lines = []
    for name, options in CASES.items():
        tx = _make(backend, **options)
        params = {"w": jnp.asarray(rng.normal(size=shape), jnp.float32)}
        state = tx.init(params)
        for i in range(2):
            grads = {"w": jnp.asarray(rng.normal(size=shape), jnp.float32)}
            want = _float64(state, params["w"], grads["w"], i + 1, options)
            _poison(params["w"].nbytes)
            params, state, _ = jax.jit(tx.apply)(grads, state, params)
            error = float(np.abs(np.asarray(params["w"]) - want).max())
            assert error < 1e-5, (name, error)
        lines.append(f"{name}: largest error {error:.1e} of parameters near 1")
    lines.append(_check_rounding(backend, shape))
    values = jnp.asarray(rng.normal(size=shape), jnp.float32)
    for bits in (8, 4):
        codes, scales = quantize_blocks(values, bits=bits)
        back = dequantize_blocks(codes, scales, length=shape[1], bits=bits)
        error = float(jnp.abs(back - values).max() / jnp.abs(values).max())
        assert error <= 0.51 / (127 if bits == 8 else 7), (bits, error)
        lines.append(f"quantize to {bits} bits: largest error {error:.1e} of the range")
    return lines


def _float64(state: Any, param: Any, grad: Any, count: int, options: Any) -> np.ndarray:
    """The parameter after AdamW, from the moments as they are stored."""
    has_scales = bool(options)
    scales = [
        s["w"] if has_scales else None
        for s in ((state.mu_scales, state.nu_scales) if has_scales else ({}, {}))
    ]
    old = [
        _decoded(m["w"], s, sign)
        for m, s, sign in zip(
            (state.mu, state.nu), scales, ("signed", "unsigned"), strict=True
        )
    ]
    rule = AdamW(weight_decay=0.1)
    g, p = np.asarray(grad, np.float64), np.asarray(param, np.float64)
    mu = rule.b1 * old[0] + (1 - rule.b1) * g
    nu = rule.b2 * old[1] + (1 - rule.b2) * g**2
    shared = Scalars(1.0, 1e-2, 1 - rule.b1**count, 1 - rule.b2**count, 0.0)
    step = (mu / shared.bias1) / (np.sqrt(nu / shared.bias2) + rule.eps)
    return p - shared.learning_rate * (step + rule.weight_decay * p)


def _check_rounding(backend: str, shape: tuple[int, int]) -> str:
    tx = jzero.optim.sgd(1e-3, momentum=0.0, rounding="stochastic", backend=backend)
    params = {"w": jnp.ones(shape, jnp.bfloat16)}
    new, _, _ = jax.jit(tx.apply)(params, tx.init(params), params)
    mean = float(new["w"].astype(jnp.float32).mean())
    sigma = (0.256 * 0.744 / new["w"].size) ** 0.5 / 256
    assert abs(mean - 0.999) < 5 * sigma + 1e-6, mean
    return f"stochastic rounding: mean {mean:.6f}, expected 0.999"


def _median_seconds(call: Callable[[int], Any]) -> float:
    for i in range(BUFFERS):
        jax.block_until_ready(call(i))
    times = []
    for i in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(call(i % BUFFERS))
        times.append(time.perf_counter() - start)
    return median(times)


def _time_update(name: str, tx: Any, num_elems: int, element_bytes: float) -> Timing:
    shape = (num_elems // 2**12, 2**12)
    apply = jax.jit(lambda g, s, p: tx.apply(g, s, p)[:2][::-1], donate_argnums=(1, 2))
    held: list[Any] = []
    for i in range(BUFFERS):
        params = {"w": jnp.full(shape, 1.0 + i)}
        held.append((tx.init(params), params))
    grads = {"w": jnp.full(shape, 1e-3)}

    def call(i: int) -> Any:
        held[i] = apply(grads, *held[i])
        return held[i]

    return Timing(
        name=name,
        seconds=_median_seconds(call),
        num_bytes=element_bytes * num_elems,
    )


def time_all(num_elems: int, backend: str) -> list[Timing]:
    """Times a copy, then each update by the reference, by its kernel, and by torch."""
    arrays = [jnp.full(num_elems, 1.0 + i) for i in range(BUFFERS)]
    copy = jax.jit(jnp.copy)
    seconds = _median_seconds(lambda i: copy(arrays[i]))
    timings = [Timing(name="device copy", seconds=seconds, num_bytes=8 * num_elems)]
    arrays.clear()
    for name, options in CASES.items():
        # Parameter, gradient and moments, read and written; scales of 256.
        element_bytes = 16 + 4 / 64 if options else 28
        for label, chosen in (("XLA", "xla"), ("kernel", backend)):
            tx = _make(chosen, **options)
            timings.append(
                _time_update(f"{name}, {label}", tx, num_elems, element_bytes)
            )
    values = jnp.linspace(-1, 1, num_elems).reshape(-1, 2**12)
    quantize = jax.jit(lambda x: quantize_blocks(x, bits=8))
    seconds = _median_seconds(lambda i: quantize(values))
    size = (5 + 4 / 256) * num_elems
    timings.append(Timing(name="quantize, XLA", seconds=seconds, num_bytes=size))
    if util.find_spec("torch") is not None:
        timings.append(_time_torch(num_elems))
    return timings


def _time_torch(num_elems: int) -> Timing:
    # By name: torch is no dependency, and need not be there.
    torch = __import__("torch")
    held = []
    for i in range(BUFFERS):
        param = torch.full((num_elems,), 1.0 + i, device="cuda", requires_grad=True)
        param.grad = torch.full_like(param, 1e-3)
        held.append(torch.optim.AdamW([param], lr=1e-2, fused=True))

    def call(i: int) -> None:
        held[i].step()
        torch.cuda.synchronize()

    return Timing(
        name="AdamW float32, torch fused",
        seconds=_median_seconds(call),
        num_bytes=28 * num_elems,
    )


def render(timings: Sequence[Timing], device: str) -> str:
    """Returns the table, and which kernels do not pay."""
    best = timings[0].gb_per_second
    lines = [
        f"On {device}:",
        "",
        "| what | ms | GB/s | of the copy |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {t.name} | {t.seconds * 1e3:.3f} | {t.gb_per_second:.0f} "
        f"| {100 * t.gb_per_second / best:.0f} % |"
        for t in timings
    ]
    seconds = {t.name: t.seconds for t in timings}
    for name in CASES:
        if seconds[f"{name}, kernel"] >= seconds[f"{name}, XLA"]:
            lines.append(f"\n{name}: the kernel is no faster; the reference stays.")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--checks", action="store_true", help="check, and time nothing")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    options = parser.parse_args(arguments)
    device = jax.devices()[0]
    is_gpu = device.platform == "gpu"
    backend = "mosaic_gpu" if is_gpu else "mosaic_gpu_interpret"
    print(f"seed {options.seed}, {device.device_kind}, JAX {jax.__version__}")
    # Interpreted, a block takes milliseconds.
    shape = (4096, 4096) if is_gpu else (8, 512)
    for line in check_all(backend, shape, options.seed):
        print(line)
    if options.checks or not is_gpu:
        print("not timed: " + ("as asked" if options.checks else "no NVIDIA GPU here"))
        return
    print(render(time_all(2**27, backend), device.device_kind))


if __name__ == "__main__":
    main()
