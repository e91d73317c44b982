"""Steps with unusual bodies: loops, branches, calls and custom rules."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from tests.jzero.passes.programs import (
    LAYERS,
    MLP,
    ROWS,
    SQUARE,
    STACK,
    UNROLLED,
    WIDTH,
    Params,
    StepProgram,
    descend,
    half,
    half_layer,
    layer,
    mlp,
    mlp_square,
    momentum,
)


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


def nested_jit(params: Params, x: jax.Array) -> jax.Array:
    inner = jax.jit(lambda w, x, y: (layer(w, x) + y, w), donate_argnums=(1,))
    y, w = jax.jit(lambda w, x: inner(w, x, x), inline=False)(params["w"], x)
    return (layer(w, y) ** 2).mean()


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


def effectful(params: Params, x: jax.Array) -> jax.Array:
    """Callbacks in bodies keep their order and their arguments."""

    def turn(x: jax.Array, w: jax.Array) -> Any:
        jax.debug.callback(lambda v: None, w[0, 0], ordered=False)
        return jax.checkpoint(half_layer)(w, x), None

    h, _ = jax.lax.scan(turn, half(x), params["w"])
    jax.debug.callback(lambda v: None, h.sum())
    return (h.astype(jnp.float32) ** 2).mean()


def deep(params: Params, x: jax.Array) -> jax.Array:
    """A remat in a cond in a scan in a jit."""

    def turn(x: jax.Array, w: jax.Array) -> Any:
        body = jax.checkpoint(half_layer)
        y = jax.lax.cond(x.sum() > 0, lambda: body(w, x), lambda: body(w * 2, x))
        return y, None

    run = jax.jit(lambda h, w: jax.lax.scan(turn, h, w)[0])
    return (run(half(x), params["w"]).astype(jnp.float32) ** 2).mean()


def local_sgd(params: Params, slots: Params, x: jax.Array) -> Any:
    """Several updates in one call: the state is the carry of a loop."""

    def turn(carry: Any, x: jax.Array) -> Any:
        value, grads = jax.value_and_grad(mlp)(carry[0], x)
        return descend(*carry, grads), (value, carry[0]["b0"])

    micros = x.reshape(4, ROWS // 4, WIDTH)
    (params, slots), seen = jax.lax.scan(turn, (params, slots), micros)
    return params, slots, seen


def turning(params: Params, x: jax.Array) -> jax.Array:
    """Carries that change places and are transposed; weights that pile up."""

    def turn(carry: Any, x: jax.Array) -> Any:
        v, w = carry
        return (w, v.T), ((x @ v).sum(), w)

    micros = x.reshape(4, ROWS // 4, WIDTH)
    (v, w), (sums, ws) = jax.lax.scan(turn, (params["w0"], params["w1"]), micros)
    return (v * w).mean() + sums.mean() + (ws**2).mean()


def weights_chosen(params: Params, x: jax.Array) -> jax.Array:
    """Branches that return a weight: as it is, transposed, sorted, or none."""
    w = params["w"]
    ways: list[Any] = [lambda w: w, lambda w: w.T, jnp.sort, jnp.zeros_like]
    v = [jax.lax.cond(x.sum() > 0, ways[0], way, w) for way in ways[1:]]
    return (x @ v[0] @ v[1] @ v[2]).mean() + ((x @ v[1]) ** 2).mean()


def nested_remat(params: Params, x: jax.Array) -> jax.Array:
    inner = jax.checkpoint(half_layer)
    outer = jax.checkpoint(lambda w, x: inner(w, inner(w * 2, x)))
    return (outer(params["w"], half(x)).astype(jnp.float32) ** 2).mean()


def layer_by_number(params: Params, x: jax.Array) -> jax.Array:
    def turn(i: jax.Array, x: jax.Array) -> jax.Array:
        return half_layer(jax.lax.dynamic_index_in_dim(params["w"], i, 0, False), x)

    h = jax.lax.fori_loop(0, LAYERS, turn, half(x))
    return (h.astype(jnp.float32) ** 2).mean()


def gradient_in_reference(params: Params, slots: Params, x: jax.Array) -> Any:
    """A loop that adds gradients into a mutable array from outside."""
    total = jax.new_ref(jnp.zeros((WIDTH, WIDTH)))

    def turn(value: jax.Array, x: jax.Array) -> Any:
        more, grads = jax.value_and_grad(mlp_square)(params, x)
        total[...] += grads["w"]
        return value + more, None

    value, _ = jax.lax.scan(turn, 0.0, x.reshape(4, ROWS // 4, WIDTH))
    return (*descend(params, slots, {"w": jax.freeze(total)}), value)


def every_form(params: Params, x: jax.Array) -> jax.Array:
    """One weight as shard, whole and cast in one body, and as its result."""

    def turn(x: jax.Array, _: None) -> Any:
        w = params["w"]
        y = jnp.tanh(x @ w) + x @ half(w).astype(jnp.float32)
        return y, (w * 2, half(w))

    y, (ws, vs) = jax.lax.scan(turn, x, None, length=2)
    return (y**2).mean() + (ws[0] ** 2).mean() + vs.astype(jnp.float32).mean()


def while_carries(params: Params, slots: Params, x: jax.Array) -> Any:
    """A while that carries rows and a shard and reads a weight."""
    w = params["w"]

    def turn(carry: Any) -> Any:
        i, x, m = carry
        return i + 1, half_layer(w, x), m + w * 0.1

    _, x, m = jax.lax.while_loop(
        lambda carry: carry[0] < 3, turn, (0, half(x), slots["w"])
    )
    return {"w": w - 0.01 * m}, {"w": m}, x.astype(jnp.float32).mean()


BODIES: dict[str, StepProgram] = {
    "scanned_backwards": StepProgram(step=momentum(scanned_backwards), params=STACK),
    "scanned_nothing": StepProgram(step=momentum(scanned_nothing), params=SQUARE),
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
    "repeated": StepProgram(step=momentum(repeated), params=SQUARE, rtol=3e-2),
    "passed_through": StepProgram(
        step=passed_through, params={**SQUARE, "frozen": (WIDTH, 24)}
    ),
    "effectful": StepProgram(step=momentum(effectful), params=STACK, rtol=3e-2),
    "deep": StepProgram(step=momentum(deep), params=STACK, rtol=3e-2),
    "local_sgd": StepProgram(step=local_sgd, params=MLP),
    "turning": StepProgram(
        step=momentum(turning), params={"w0": (WIDTH, WIDTH), "w1": (WIDTH, WIDTH)}
    ),
    "weights_chosen": StepProgram(step=momentum(weights_chosen), params=SQUARE),
    "nested_remat": StepProgram(step=momentum(nested_remat), params=SQUARE, rtol=3e-2),
    "layer_by_number": StepProgram(
        step=momentum(layer_by_number), params=STACK, rtol=3e-2
    ),
    "gradient_in_reference": StepProgram(step=gradient_in_reference, params=SQUARE),
    "every_form": StepProgram(step=momentum(every_form), params=SQUARE, rtol=3e-2),
    "while_carries": StepProgram(step=while_carries, params=SQUARE, rtol=3e-2),
}
