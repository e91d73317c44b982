"""Small training steps for the passes: one per construct that a step may hold.

Every step is `(params, slots, *batch) -> (params, slots, rest)`: momentum SGD on
a dict of parameters, with the slots shaped as the parameters. Shapes: rows of the
batch B = 16, width D = 16, layers L = 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

ROWS, WIDTH, LAYERS = 16, 16, 3

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


def scanned_backwards(params: Params, x: jax.Array) -> jax.Array:
    def turn(x: jax.Array, w: jax.Array) -> Any:
        y = layer(w, x)
        return y, y.sum(1)

    x, sums = jax.lax.scan(turn, x, params["w"], reverse=True, unroll=2)
    return (x**2).mean() + 0.01 * sums.mean()


def scanned_nothing(params: Params, x: jax.Array) -> jax.Array:
    # The weight is a constant of a loop that never turns.
    y, _ = jax.lax.scan(lambda x, _: (layer(params["w"], x), None), x, None, length=0)
    return (y**2).mean() + (layer(params["w"], x) ** 2).mean()


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


def branches(params: Params, x: jax.Array) -> jax.Array:
    """A cond with a tuple result and a switch of which one branch is weightless."""
    y, aux = jax.lax.cond(
        x.sum() > 0,
        lambda w, x: (layer(w, x), x.sum()),
        lambda w, x: (layer(w.T, x), (x**2).sum()),
        params["w"],
        x,
    )
    z = jax.lax.switch(
        jnp.int32(1),
        [lambda w, x: x, lambda w, x: layer(w, x), lambda w, x: x @ half(w)],
        params["w"],
        y,
    )
    return (z**2).mean() + 1e-3 * aux


def power_iteration(params: Params, x: jax.Array) -> jax.Array:
    """A while with constants for its test and its body."""
    w = jax.lax.stop_gradient(params["w"])
    limit = jnp.abs(w).sum()

    def go_on(carry: Any) -> Any:
        i, v = carry
        return (i < 4) & (jnp.abs(w @ v).sum() < limit * 100)

    def turn(carry: Any) -> Any:
        i, v = carry
        u = w @ v
        return i + 1, u / jnp.sqrt((u**2).sum())

    _, v = jax.lax.while_loop(go_on, turn, (0, jnp.ones(WIDTH)))
    return (layer(params["w"], x) ** 2).mean() / jnp.sqrt(((w @ v) ** 2).sum())


def orthogonal_update(params: Params, slots: Params, x: jax.Array) -> Any:
    """Newton-Schulz on the whole momentum, as Muon does, in a fori loop."""
    value, grads = jax.value_and_grad(mlp_square)(params, x)
    slots = jax.tree.map(lambda m, g: 0.9 * m + g, slots, grads)

    def orthogonal(m: jax.Array) -> jax.Array:
        m = m / (jnp.sqrt((m**2).sum()) + 1e-6)
        turn = lambda _, m: 1.5 * m - 0.5 * m @ m.T @ m  # noqa: E731
        return jax.lax.fori_loop(0, 3, turn, m)

    params = jax.tree.map(lambda p, m: p - 0.1 * orthogonal(m), params, slots)
    return params, slots, value


def mlp_square(params: Params, x: jax.Array) -> jax.Array:
    return (layer(params["w"], x) ** 2).mean()


def nested_jit(params: Params, x: jax.Array) -> jax.Array:
    inner = jax.jit(lambda w, x, y: (layer(w, x) + y, w), donate_argnums=(1,))
    y, w = jax.jit(lambda w, x: inner(w, x, x), inline=False)(params["w"], x)
    return (layer(w, y) ** 2).mean()


@jax.custom_vjp
def doubled_gradient(w: jax.Array, x: jax.Array) -> jax.Array:
    return layer(w, x)


def _doubled_fwd(w: jax.Array, x: jax.Array) -> Any:
    return layer(w, x), (w, x)


def _doubled_bwd(kept: Any, ct: jax.Array) -> Any:
    _, pull = jax.vjp(layer, *kept)
    return jax.tree.map(lambda g: 2 * g, pull(ct))


doubled_gradient.defvjp(_doubled_fwd, _doubled_bwd)


@jax.custom_jvp
def clipped(w: jax.Array) -> jax.Array:
    return jnp.clip(w, -1.0, 1.0)


@clipped.defjvp
def _clipped_jvp(primals: Any, tangents: Any) -> Any:
    return clipped(*primals), tangents[0] * 0.5


def custom_rules(params: Params, x: jax.Array) -> jax.Array:
    def turn(x: jax.Array, w: jax.Array) -> Any:
        return doubled_gradient(clipped(w), x), None

    x, _ = jax.lax.scan(turn, x, params["w"])
    return (x**2).mean()


def custom_forward(params: Params, slots: Params, x: jax.Array) -> Any:
    """Custom rules that nobody differentiates stay equations of their own."""
    value = doubled_gradient(clipped(params["w"]), x).mean()
    return (*descend(params, slots, jax.tree.map(lambda p: p * value, params)), value)


def named_policy(params: Params, x: jax.Array) -> jax.Array:
    policy = jax.checkpoint_policies.save_only_these_names("kept")

    def block(w: jax.Array, x: jax.Array) -> jax.Array:
        y = checkpoint_name(half_layer(w, x), "kept")
        return half_layer(w.T, y)

    h = half(x)
    for w in params.values():
        h = jax.checkpoint(block, policy=policy)(w, h)
    return (h.astype(jnp.float32) ** 2).mean()


def offload_policy(params: Params, x: jax.Array) -> jax.Array:
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["kept"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def turn(x: jax.Array, w: jax.Array) -> Any:
        x = checkpoint_name(x, "kept")
        return layer(w, x), None

    x, _ = jax.lax.scan(jax.checkpoint(turn, policy=policy), x, params["w"])
    return (x**2).mean()


def tied(params: Params, ids: jax.Array) -> jax.Array:
    """One table used as an embedding and, transposed, as the head."""
    h = half(params["table"])[ids]
    h = half_layer(params["w"], h)
    logits = (h @ half(params["table"]).T).astype(jnp.float32)
    return -jax.nn.log_softmax(logits)[:, 0].mean()


def unknown(params: Params, x: jax.Array) -> jax.Array:
    """Primitives that no rule knows."""
    w = params["w"]
    s = jnp.sort(w, 1) + jnp.cumsum(w, 0)
    top, _ = jax.lax.top_k(s, 3)
    spd = w @ w.T + 17.0 * jnp.eye(WIDTH)
    root = jnp.linalg.cholesky(spd)
    return ((x @ s) ** 2).mean() * 1e-3 + top.mean() + jnp.log(jnp.diag(root)).sum()


def repeated(params: Params, x: jax.Array) -> jax.Array:
    """One operand twice, in an equation and into bodies."""
    w = params["w"]
    both = jax.jit(lambda a, b, x: x @ a + x @ half(b))
    square = w @ w + w * w

    def turn(x: jax.Array, ws: Any) -> Any:
        return jnp.tanh(x @ ws[0] @ w + both(ws[1], w, x)), None

    stacks = jnp.stack([w, w])
    y, _ = jax.lax.scan(turn, x @ square, (stacks, stacks))
    return (y**2).mean()


def passed_through(params: Params, slots: Params, x: jax.Array) -> Any:
    """Outputs that are inputs, literals, the same value twice, or dropped."""
    trained = {"w": params["w"]}
    value, grads = jax.value_and_grad(mlp_square)(trained, x)
    new, moved = descend(trained, {"w": slots["w"]}, grads)
    unused = jax.jit(lambda w, x: (x @ w, (x**2).sum()))(params["frozen"], x)
    new_params = {**params, **new}
    rest = (value, value, 1.0, x, params["frozen"], moved["w"], unused[1])
    return new_params, {**slots, **moved}, rest


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


def effectful(params: Params, x: jax.Array) -> jax.Array:
    """Callbacks in bodies keep their order and their arguments."""

    def turn(x: jax.Array, w: jax.Array) -> Any:
        jax.debug.callback(lambda v: None, w[0, 0], ordered=False)
        return jax.checkpoint(half_layer)(w, x), None

    h, _ = jax.lax.scan(turn, half(x), params["w"])
    jax.debug.callback(lambda v: None, h.sum())
    return (h.astype(jnp.float32) ** 2).mean()


def dropout(params: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    """A key for each turn of a scan."""

    def turn(x: jax.Array, each: Any) -> Any:
        w, key = each
        keep = jax.random.bernoulli(key, 0.5, x.shape)
        return jnp.where(keep, layer(w, x), 0.0), None

    x, _ = jax.lax.scan(turn, x, (params["w"], jax.random.split(key, LAYERS)))
    return (x**2).mean()


def mutable(params: Params, slots: Params, x: jax.Array) -> Any:
    """A mutable array that takes a weight and gives back a gradient."""
    value, grads = jax.value_and_grad(mlp_square)(params, x)
    ref = jax.new_ref(slots["w"])
    ref[...] += grads["w"]
    ref[...] = ref[...] + params["w"] * 0.01
    slots = {"w": jax.freeze(ref)}
    return {"w": params["w"] - 0.1 * slots["w"]}, slots, value


def deep(params: Params, x: jax.Array) -> jax.Array:
    """A remat in a cond in a scan in a jit."""

    def turn(x: jax.Array, w: jax.Array) -> Any:
        body = jax.checkpoint(half_layer)
        y = jax.lax.cond(x.sum() > 0, lambda: body(w, x), lambda: body(w * 2, x))
        return y, None

    run = jax.jit(lambda h, w: jax.lax.scan(turn, h, w)[0])
    return (run(half(x), params["w"]).astype(jnp.float32) ** 2).mean()


def narrow_then_wide(params: Params, x: jax.Array) -> jax.Array:
    """Rounds a weight to eight bits, as mixed-precision schemes do."""
    w = params["w"].astype(jnp.float8_e4m3fn).astype(jnp.bfloat16)
    v = params["v"].astype(jnp.float32)
    return ((half(x) @ w).astype(jnp.float32) @ v).mean()


def convolution(params: Params, x: jax.Array) -> jax.Array:
    y = jax.lax.conv_general_dilated(
        x, params["k"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    y = (y - y.mean((0, 1, 2), keepdims=True)) * params["scale"][None, None, None]
    return (jax.nn.relu(y) ** 2).mean()


def mapped(params: Params, x: jax.Array) -> jax.Array:
    """Vmapped experts, a loop without state, and an associative scan."""
    ys = jax.vmap(layer, (0, None))(params["w"], x)
    zs = jax.lax.map(lambda w: (w**2).sum(), params["w"])
    ws = jax.lax.associative_scan(jnp.add, params["w"])
    return (ys**2).mean() + 1e-3 * zs.sum() + (x @ ws[-1]).mean()


PROGRAMS: dict[str, StepProgram] = {
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
    "scanned_backwards": StepProgram(step=momentum(scanned_backwards), params=STACK),
    "scanned_nothing": StepProgram(step=momentum(scanned_nothing), params=SQUARE),
    "scan_of_one_weight": StepProgram(
        step=momentum(scan_of_one_weight), params=SQUARE
    ),
    "accumulate": StepProgram(step=accumulate, params=MLP, rtol=3e-2),
    "branches": StepProgram(step=momentum(branches), params=SQUARE, rtol=3e-2),
    "power_iteration": StepProgram(step=momentum(power_iteration), params=SQUARE),
    "orthogonal_update": StepProgram(step=orthogonal_update, params=SQUARE),
    "nested_jit": StepProgram(step=momentum(nested_jit), params=SQUARE),
    "custom_rules": StepProgram(step=momentum(custom_rules), params=STACK),
    "custom_forward": StepProgram(step=custom_forward, params=SQUARE),
    "named_policy": StepProgram(
        step=momentum(named_policy), params=UNROLLED, rtol=3e-2
    ),
    "offload_policy": StepProgram(step=momentum(offload_policy), params=STACK),
    "tied": StepProgram(
        step=momentum(tied),
        params={"table": (32, WIDTH), **SQUARE},
        batch=(ints(ROWS),),
        rtol=3e-2,
    ),
    "unknown": StepProgram(step=momentum(unknown), params=SQUARE),
    "repeated": StepProgram(step=momentum(repeated), params=SQUARE, rtol=3e-2),
    "passed_through": StepProgram(
        step=passed_through, params={**SQUARE, "frozen": (WIDTH, 24)}
    ),
    "when_finite": StepProgram(step=when_finite, params=MLP, rtol=3e-2),
    "effectful": StepProgram(step=momentum(effectful), params=STACK, rtol=3e-2),
    "dropout": StepProgram(
        step=momentum(dropout),
        params=STACK,
        batch=((ROWS, WIDTH), jax.eval_shape(lambda: jax.random.key(7))),
    ),
    "mutable": StepProgram(step=mutable, params=SQUARE),
    "deep": StepProgram(step=momentum(deep), params=STACK, rtol=3e-2),
    "narrow_then_wide": StepProgram(
        step=momentum(narrow_then_wide),
        params={
            **SQUARE,
            "v": jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16),
        },
        rtol=3e-2,
    ),
    "convolution": StepProgram(
        step=momentum(convolution),
        params={"k": (3, 3, 4, 16), "scale": (16,)},
        batch=((ROWS, 6, 6, 4),),
    ),
    "mapped": StepProgram(step=momentum(mapped), params=STACK),
}
