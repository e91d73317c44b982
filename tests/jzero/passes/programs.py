"""Small training steps for the passes: what models usually hold.

Every step is `(params, slots, *batch) -> (params, slots, rest)`: momentum SGD on
a dict of parameters, with the slots shaped as the parameters. Shapes: rows of the
batch B = 32, width D = 16, layers L = 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ROWS, WIDTH, LAYERS = 32, 16, 3

Params = dict[str, Any]
Loss = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class StepProgram:
    """A step with shapes of its arguments.

    Attributes:
        step: the training step.
        params: shape of each parameter; float32 unless a dtype is given.
        batch: shape and dtype of each batch argument.
        rtol: how far bfloat16 rounding may drive several devices from one.
    """

    step: Callable[..., Any]
    params: dict[str, Any]
    batch: tuple[Any, ...] = field(default=((ROWS, WIDTH),))
    rtol: float = 2e-5

    def arguments(self) -> tuple[Any, ...]:
        """Numbers for the arguments: the same ones every time."""
        rng = np.random.default_rng(0)
        params = {k: _numbers(rng, v, 0.3) for k, v in self.params.items()}
        slots = {k: _numbers(rng, v, 0.1) for k, v in self.params.items()}
        batch = [_numbers(rng, v, 1.0) for v in self.batch]
        return (params, slots, *batch)


def _numbers(rng: np.random.Generator, what: Any, scale: float) -> Any:
    if isinstance(what, tuple):
        return jnp.asarray(rng.normal(0.0, scale, what), jnp.float32)
    if jnp.issubdtype(what.dtype, jax.dtypes.prng_key):
        return jax.random.key(7)
    if jnp.issubdtype(what.dtype, jnp.integer):
        return jnp.asarray(rng.integers(0, WIDTH, what.shape), what.dtype)
    return jnp.asarray(rng.normal(0.0, scale, what.shape), what.dtype)


def momentum(loss: Loss) -> Callable[..., Any]:
    """Makes a step that takes a momentum step down a loss."""

    def step(params: Params, slots: Params, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return (*descend(params, slots, grads), value)

    return step


def descend(params: Params, slots: Params, grads: Params) -> tuple[Params, Params]:
    """One update of momentum SGD."""
    slots = jax.tree.map(lambda m, g: 0.9 * m + g, slots, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, slots), slots


def ints(*shape: int) -> jax.ShapeDtypeStruct:
    """An integer argument."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def half(x: jax.Array) -> jax.Array:
    """The cast of a model that computes in bfloat16."""
    return x.astype(jnp.bfloat16)


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    """One float32 layer."""
    return jnp.tanh(x @ w)


def half_layer(w: jax.Array, x: jax.Array) -> jax.Array:
    """One bfloat16 layer of a float32 weight."""
    return jnp.tanh(x @ half(w))


SQUARE = {"w": (WIDTH, WIDTH)}
STACK = {"w": (LAYERS, WIDTH, WIDTH)}
UNROLLED = {f"w{i}": (WIDTH, WIDTH) for i in range(4)}


def mlp(params: Params, x: jax.Array) -> jax.Array:
    for i in range(2):
        x = jnp.tanh(x @ params[f"w{i}"] + params[f"b{i}"][None])
    return (x**2).mean()


MLP = {"w0": (16, 32), "b0": (32,), "w1": (32, 16), "b1": (16,)}


def half_mlp(params: Params, x: jax.Array) -> jax.Array:
    h = half(x)
    for i in range(2):
        h = jnp.tanh(h @ half(params[f"w{i}"]) + half(params[f"b{i}"])[None])
    return (h.astype(jnp.float32) ** 2).mean()


def unrolled(params: Params, x: jax.Array) -> jax.Array:
    for w in params.values():
        x = layer(w, x)
    return (x**2).mean()


def unrolled_half(params: Params, x: jax.Array) -> jax.Array:
    h = half(x)
    for w in params.values():
        h = half_layer(w, h)
    return (h.astype(jnp.float32) ** 2).mean()


def unrolled_remat(params: Params, x: jax.Array) -> jax.Array:
    h = half(x)
    for w in params.values():
        h = jax.checkpoint(half_layer)(w, h)
    return (h.astype(jnp.float32) ** 2).mean()


def scanned(params: Params, x: jax.Array) -> jax.Array:
    x, _ = jax.lax.scan(lambda x, w: (layer(w, x), None), x, params["w"])
    return (x**2).mean()


def scanned_half_remat(params: Params, x: jax.Array) -> jax.Array:
    body = jax.checkpoint(half_layer, prevent_cse=False)
    h, _ = jax.lax.scan(lambda x, w: (body(w, x), None), half(x), params["w"])
    return (h.astype(jnp.float32) ** 2).mean()


def scan_of_one_weight(params: Params, x: jax.Array) -> jax.Array:
    x, _ = jax.lax.scan(lambda x, _: (layer(params["w"], x), None), x, None, length=3)
    return (x**2).mean()


def accumulate(params: Params, slots: Params, x: jax.Array) -> Any:
    """Adds up the gradients of four micro-batches, cut from the batch."""
    micros = x.reshape(4, ROWS // 4, WIDTH)

    def turn(carry: Any, x: jax.Array) -> Any:
        total, grads = carry
        value, grad = jax.value_and_grad(half_mlp)(params, x)
        return (total + value, jax.tree.map(jnp.add, grads, grad)), None

    zeros = jax.tree.map(jnp.zeros_like, params)
    (value, grads), _ = jax.lax.scan(turn, (jnp.zeros(()), zeros), micros)
    grads = jax.tree.map(lambda g: g / 4, grads)
    return (*descend(params, slots, grads), value / 4)


def mlp_square(params: Params, x: jax.Array) -> jax.Array:
    return (layer(params["w"], x) ** 2).mean()


def tied(params: Params, ids: jax.Array) -> jax.Array:
    """One table used as an embedding and, transposed, as the head."""
    h = half(params["table"])[ids]
    h = half_layer(params["w"], h)
    logits = (h @ half(params["table"]).T).astype(jnp.float32)
    return -jax.nn.log_softmax(logits)[:, 0].mean()


def when_finite(params: Params, slots: Params, x: jax.Array) -> Any:
    """An update under a cond, as apply_if_finite and loss scaling do."""
    value, grads = jax.value_and_grad(half_mlp)(params, x)
    is_finite = jnp.isfinite(value)
    params, slots = jax.lax.cond(
        is_finite,
        lambda: descend(params, slots, grads),
        lambda: (params, slots),
    )
    return params, slots, value


def dropout(params: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    """A key for each turn of a scan."""

    def turn(x: jax.Array, each: Any) -> Any:
        w, key = each
        keep = jax.random.bernoulli(key, 0.5, x.shape)
        return jnp.where(keep, layer(w, x), 0.0), None

    x, _ = jax.lax.scan(turn, x, (params["w"], jax.random.split(key, LAYERS)))
    return (x**2).mean()


def convolution(params: Params, x: jax.Array) -> jax.Array:
    y = jax.lax.conv_general_dilated(
        x, params["k"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    y = (y - y.mean((0, 1, 2), keepdims=True)) * params["scale"][None, None, None]
    return (jax.nn.relu(y) ** 2).mean()


USUAL: dict[str, StepProgram] = {
    "mlp": StepProgram(step=momentum(mlp), params=MLP),
    "half_mlp": StepProgram(step=momentum(half_mlp), params=MLP, rtol=3e-2),
    "unrolled": StepProgram(step=momentum(unrolled), params=UNROLLED),
    "unrolled_half": StepProgram(
        step=momentum(unrolled_half), params=UNROLLED, rtol=3e-2
    ),
    "unrolled_remat": StepProgram(
        step=momentum(unrolled_remat), params=UNROLLED, rtol=3e-2
    ),
    "scanned": StepProgram(step=momentum(scanned), params=STACK),
    "scanned_half_remat": StepProgram(
        step=momentum(scanned_half_remat), params=STACK, rtol=3e-2
    ),
    "scan_of_one_weight": StepProgram(step=momentum(scan_of_one_weight), params=SQUARE),
    "accumulate": StepProgram(step=accumulate, params=MLP, rtol=3e-2),
    "tied": StepProgram(
        step=momentum(tied),
        params={"table": (32, WIDTH), **SQUARE},
        batch=(ints(ROWS),),
        rtol=3e-2,
    ),
    "when_finite": StepProgram(step=when_finite, params=MLP, rtol=3e-2),
    "dropout": StepProgram(
        step=momentum(dropout),
        params=STACK,
        batch=((ROWS, WIDTH), jax.eval_shape(lambda: jax.random.key(7))),
    ),
    "convolution": StepProgram(
        step=momentum(convolution),
        params={"k": (3, 3, 4, 16), "scale": (16,)},
        batch=((ROWS, 6, 6, 4),),
    ),
}
