"""Every GPU kernel against float64, on fresh random inputs; see `gpu_kernels.py`.

The expected numbers are written down anew, in NumPy and float64, from the moments as
they are stored. Before each launch memory is filled with NaN and freed, so that an
output that a kernel forgets to write is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jzero
from pallas_kernels import decode, dequantize_blocks, quantize_blocks
from pallas_kernels.blocks import spread, to_blocks

__all__ = ["Check", "checks"]

Check = tuple[str, Callable[[], str]]
Tree = dict[str, Any]
LEARNING_RATE, DECAY = 1e-2, 0.1
# Half of the widest gap between two codes, as a part of the block's largest value.
CODE_ERROR = {"mu": 0.9 / 64 / 2, "nu": 0.9 / 128 / 2}
ODD = {"one": (1,), "row": (257,), "cube": (3, 5, 17), "large": (301, 257)}


def checks(backend: str, shape: tuple[int, int], seed: int) -> Iterator[Check]:
    """Yields a name and a function for each kernel.

    The function returns a line about it, and raises `AssertionError` if it is wrong.

    Args:
        backend: Of `jzero.optim`.
        shape: Of the parameter; the last dim a multiple of 256.
        seed: Of the inputs, each of which depends on nothing else.
    """
    optim, f32, one = jzero.optim, jnp.float32, {"w": shape}
    codes, fixed = {"state": "int8"}, {"backend": backend}
    cases: dict[str, tuple[Any, Tree, Tree, Any]] = {
        "AdamW": (optim.adamw, {}, one, f32),
        "AdamW, bfloat16 gradients": (optim.adamw, {}, one, jnp.bfloat16),
        "AdamW, float16 gradients": (optim.adamw, {}, one, jnp.float16),
        "AdamW, odd leaves": (optim.adamw, {}, ODD, f32),
        "Adam with L2": (optim.adam, {}, one, f32),
        "Lion": (optim.lion, {}, one, f32),
        "Nesterov": (optim.sgd, {"nesterov": True}, one, f32),
        "AdamW 8-bit": (optim.adamw, codes, one, f32),
        "Lion 8-bit": (optim.lion, codes, one, f32),
    }
    for name, (make, options, shapes, dtype) in cases.items():
        tx = make(LEARNING_RATE, weight_decay=DECAY, **options, **fixed)
        rng = np.random.default_rng([seed, *name.encode()])
        yield name, partial(_check_update, tx, shapes, jnp.dtype(dtype), rng)
    rng = np.random.default_rng(seed)
    yield "AdamW under masters", partial(_check_masters, fixed, shape, rng)
    yield "stochastic rounding", partial(_check_rounding, fixed, shape, rng)
    for bits in (8, 4):
        yield (
            f"quantize to {bits} bits",
            partial(_check_quantize, backend, shape, bits, rng),
        )


def _poison(num_bytes: int) -> None:
    """Leaves NaN behind in memory that the next results are likely to get."""
    arrays = [jnp.full(max(1, num_bytes // 16), jnp.nan) for _ in range(4)]
    jax.block_until_ready(arrays)


def _normal(rng: np.random.Generator, shapes: Tree, dtype: Any = jnp.float32) -> Tree:
    return {
        name: jnp.asarray(rng.normal(size=shape).astype(np.float32), dtype)
        for name, shape in shapes.items()
    }


def _check_update(
    tx: Any, shapes: Tree, grad_dtype: Any, rng: np.random.Generator
) -> str:
    """Two steps against float64, and one that is skipped."""
    params = _normal(rng, shapes)
    state, apply, error = tx.init(params), jax.jit(tx.apply), 0.0
    for count in (1, 2):
        grads = _normal(rng, shapes, grad_dtype)
        want = {
            name: _expected(tx.update.rule, state, params, grads, name, count)
            for name in shapes
        }
        _poison(sum(p.nbytes for p in params.values()))
        params, state, _ = apply(grads, state, params, grad_scale=0.5, skip=False)
        for name, (param, moments) in want.items():
            error = max(error, _largest_error(tx, params[name], param))
            _check_moments(state, name, moments)
    bad = jax.tree.map(lambda g: g * jnp.nan, grads)
    kept = apply(bad, state, params, grad_scale=0.5, skip=True)[:2]
    for a, b in zip(*map(jax.tree.leaves, (kept, (params, state))), strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b)), "a skip changed a bit"
    return f"largest error {error:.1e} of parameters near 1; a skip changes no bit"


def _largest_error(tx: Any, got: Any, want: np.ndarray) -> float:
    error = np.abs(np.asarray(got, np.float64) - want)
    # The sign of a mix that is nearly zero may come out either way.
    allowed = error.size // 10**5 if type(tx.update.rule).__name__ == "Lion" else 0
    wrong = int((~(error < 1e-5)).sum())
    assert wrong <= allowed, f"{wrong} parameters wrong, by up to {error.max():.1e}"
    return float(np.where(error < 1e-5, error, 0).max(initial=0.0))


def _check_moments(state: Any, name: str, want: Sequence[np.ndarray]) -> None:
    for field, values in zip(("mu", "nu"), want, strict=False):
        got, scales = _decoded(state, field, name)
        if scales is None:
            wrong = ~np.isclose(got, values, rtol=1e-5, atol=1e-6)
        else:
            wrong = ~(np.abs(got - values) <= scales * (CODE_ERROR[field] * 1.01))
        assert not wrong.any(), f"{int(wrong.sum())} of {field} wrong"


def _decoded(state: Any, field: str, name: str) -> tuple[np.ndarray, Any]:
    """Returns moments in float64, and the scale of each, or None."""
    values = getattr(state, field)[name]
    tree = getattr(state, f"{field}_scales")
    scales = tree[name] if tree else None
    if scales is None:
        return np.asarray(values, np.float64), None
    tile = [n // b for n, b in zip(values.shape, scales.shape, strict=True)]
    sign = "signed" if field == "mu" else "unsigned"
    wide = jnp.broadcast_to(spread(scales), to_blocks(values, tile).shape)
    blocks = decode(to_blocks(values, tile), sign) * wide
    got, scale = (
        np.asarray(a, np.float64).reshape(values.shape) for a in (blocks, wide)
    )
    return got, scale


def _expected(
    rule: Any, state: Any, params: Tree, grads: Tree, name: str, count: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The parameter and the moments after one step with half of the gradient."""
    p = np.asarray(params[name], np.float64)
    g = np.asarray(grads[name].astype(jnp.float32), np.float64) * 0.5
    old = [_decoded(state, field, name)[0] for field in ("mu", "nu")[: len(rule.signs)]]
    kind = type(rule).__name__
    if kind == "Momentum":
        g = g + rule.weight_decay * p
        trace = g + rule.decay * old[0]
        return p - LEARNING_RATE * (g + rule.decay * trace), [trace]
    if kind == "Lion":
        step = np.sign(rule.b1 * old[0] + (1 - rule.b1) * g) + rule.weight_decay * p
        return p - LEARNING_RATE * step, [rule.b2 * old[0] + (1 - rule.b2) * g]
    if rule.is_l2:
        g = g + rule.weight_decay * p
    mu = rule.b1 * old[0] + (1 - rule.b1) * g
    nu = rule.b2 * old[1] + (1 - rule.b2) * g**2
    bias = 1 - rule.b1**count, 1 - rule.b2**count
    step = (mu / bias[0]) / (np.sqrt(nu / bias[1]) + rule.eps)
    step += 0.0 if rule.is_l2 else rule.weight_decay * p
    return p - LEARNING_RATE * step, [mu, nu]


def _check_masters(
    fixed: Tree, shape: tuple[int, int], rng: np.random.Generator
) -> str:
    tx = jzero.optim.with_master_weights(jzero.optim.adamw(LEARNING_RATE, **fixed))
    params = _normal(rng, {"w": shape}, jnp.bfloat16)
    _poison(params["w"].nbytes)
    new, state = jax.jit(tx.apply)(params, tx.init(params), params)
    want = state.masters["w"].astype(jnp.bfloat16)
    assert new["w"].dtype == jnp.bfloat16
    assert bool((new["w"] == want).all()), "parameters are not their masters, rounded"
    assert bool((state.masters["w"] != params["w"]).any()), "nothing moved"
    return "parameters are their masters, rounded"


def _check_rounding(
    fixed: Tree, shape: tuple[int, int], rng: np.random.Generator
) -> str:
    seed = int(rng.integers(2**31))

    def rounded(**options: Any) -> jax.Array:
        tx = jzero.optim.sgd(
            1e-3, momentum=0.0, rounding="stochastic", seed=seed, **options
        )
        params = {"w": jnp.ones(shape, jnp.bfloat16)}
        _poison(params["w"].nbytes)
        return jax.jit(tx.apply)(params, tx.init(params), params).params["w"]

    new = rounded(**fixed).astype(jnp.float32)
    mean = float(new.mean())
    sigma = (0.256 * 0.744 / new.size) ** 0.5 / 256
    assert abs(mean - 0.999) < 5 * sigma + 1e-6, f"the mean is {mean}"
    differing = float((new != rounded(backend="xla").astype(jnp.float32)).mean())
    assert differing < 1e-4, f"{differing:.1e} of the bits are not the reference's"
    return f"mean {mean:.6f}, expected 0.999; {differing:.0e} differ from the reference"


def _check_quantize(
    backend: str, shape: tuple[int, int], bits: Any, rng: np.random.Generator
) -> str:
    values = _normal(rng, {"w": shape})["w"]
    quantize = jax.jit(partial(quantize_blocks, bits=bits, backend=backend))
    _poison(values.nbytes)
    codes, scales = quantize(values)
    dequantize = partial(dequantize_blocks, length=shape[1], bits=bits)
    back = jax.jit(partial(dequantize, backend=backend))(codes, scales)
    exact = np.asarray(values, np.float64).reshape(-1, 256)
    error = np.abs(np.asarray(back, np.float64).reshape(-1, 256) - exact)
    half = np.abs(exact).max(axis=1, keepdims=True) / (2 * (127 if bits == 8 else 7))
    assert (error <= half * 1.001).all(), f"off by {(error / half).max():.2f} halves"
    other = dequantize(*quantize_blocks(values, bits=bits))
    differing = float((back != other).mean())
    assert differing < 1e-4, f"{differing:.1e} of the codes are not the reference's"
    return f"largest error {(error / half).max():.3f} of half a step"
