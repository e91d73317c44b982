"""Steps with rare primitives, leaves and placements."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.jzero.passes.programs import (
    SQUARE,
    STACK,
    WIDTH,
    Params,
    StepProgram,
    half,
    layer,
    mlp_square,
    momentum,
)


def mutable(params: Params, slots: Params, x: jax.Array) -> Any:
    """A mutable array that takes a weight and gives back a gradient."""
    value, grads = jax.value_and_grad(mlp_square)(params, x)
    ref = jax.new_ref(slots["w"])
    ref[...] += grads["w"]
    ref[...] = ref[...] + params["w"] * 0.01
    slots = {"w": jax.freeze(ref)}
    return {"w": params["w"] - 0.1 * slots["w"]}, slots, value


def unknown(params: Params, x: jax.Array) -> jax.Array:
    """Primitives that no rule knows."""
    w = params["w"]
    s = jnp.sort(w, 1) + jnp.cumsum(w, 0)
    top, _ = jax.lax.top_k(s, 3)
    spd = w @ w.T + 17.0 * jnp.eye(WIDTH)
    root = jnp.linalg.cholesky(spd)
    return ((x @ s) ** 2).mean() * 1e-3 + top.mean() + jnp.log(jnp.diag(root)).sum()


def narrow_then_wide(params: Params, x: jax.Array) -> jax.Array:
    """Rounds a weight to eight bits, as mixed-precision schemes do."""
    w = params["w"].astype(jnp.float8_e4m3fn).astype(jnp.bfloat16)
    v = params["v"].astype(jnp.float32)
    return ((half(x) @ w).astype(jnp.float32) @ v).mean()


def mapped(params: Params, x: jax.Array) -> jax.Array:
    """Vmapped experts, a loop without state, and an associative scan."""
    ys = jax.vmap(layer, (0, None))(params["w"], x)
    zs = jax.lax.map(lambda w: (w**2).sum(), params["w"])
    ws = jax.lax.associative_scan(jnp.add, params["w"])
    return (ys**2).mean() + 1e-3 * zs.sum() + (x @ ws[-1]).mean()


def placed_by_user(params: Params, x: jax.Array) -> jax.Array:
    """The user's own constraints and a region of their own."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def put(x: jax.Array, *spec: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    region = jax.shard_map(
        layer, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data")
    )
    w = put(params["w"], None, None)
    y = put(region(w, put(layer(w, x), "data")), "data")
    turn = lambda y, _: (put(layer(put(params["w"]), y), "data"), None)  # noqa: E731
    y, _ = jax.lax.scan(turn, y, None, length=2)
    return (y**2).mean()


def second_order(params: Params, slots: Params, x: jax.Array) -> Any:
    """A Hessian-vector product with the momentum."""
    loss = lambda w: mlp_square({"w": w}, x)  # noqa: E731
    w, m = params["w"], slots["w"]
    grad, curved = jax.jvp(jax.grad(loss), (w,), (m,))
    return {"w": w - 0.1 * grad - 0.01 * curved}, {"w": m + curved}, loss(w)


def swapped(params: Params, slots: Params, x: jax.Array) -> Any:
    """Parameters and slots change places."""
    grads = jax.grad(mlp_square)(params, x)
    return slots, jax.tree.map(jnp.add, params, grads), 1


def patched(params: Params, slots: Params, x: jax.Array) -> Any:
    """Updates of some rows and columns only."""
    g = jax.grad(mlp_square)(params, x)["w"]
    w = params["w"].at[0].set(0.0).at[:, 3:5].add(g[:, 3:5])
    w = jax.lax.dynamic_update_slice(w, g[:2], (2, 0))
    rows = jnp.array([1, 2])
    return {"w": w}, {"w": slots["w"].at[rows].multiply(2.0)}, 0.0


_TABLE = np.linspace(-1.0, 1.0, WIDTH * WIDTH, dtype=np.float32).reshape(WIDTH, WIDTH)


def closed_over(params: Params, x: jax.Array) -> jax.Array:
    """Arrays that are constants of the program and of a body."""
    table = jnp.asarray(_TABLE)
    turn = lambda x, w: (jnp.tanh(x @ w + x @ table), None)  # noqa: E731
    y, _ = jax.lax.scan(turn, x @ _TABLE, params["w"])
    return (y[:WIDTH] * table).mean()


def complex_numbers(params: Params, x: jax.Array) -> jax.Array:
    w = jnp.fft.fft(params["w"])
    z = jax.lax.complex(params["w"], params["w"])
    return ((x @ w.real) ** 2).mean() * 1e-2 + (x @ z.imag).mean() + jnp.abs(z).mean()


def odd_leaves(params: Params, x: jax.Array) -> jax.Array:
    """A scalar, one element, none, and a shape that nothing divides."""
    whole = params["s"] ** 2 + params["one"].sum() + params["none"].sum()
    return (x @ params["w"]).mean() + whole + (params["odd"].sum() * x).mean()


def many_casts(params: Params, x: jax.Array) -> jax.Array:
    """Chains of casts that share a start, also through a name, also to bools."""
    w = params["w"]
    a = half(w).astype(jnp.float16)
    b = w.astype(jnp.float16).astype(jnp.bfloat16).astype(jnp.float32)
    c = checkpoint_name(half(w), "kept")
    d = w.astype(jnp.bool_).astype(jnp.float32) + (w > 0).astype(jnp.float32)
    e = jax.lax.stop_gradient((w * 8).astype(jnp.int32).astype(jnp.float32))
    f = jax.checkpoint(lambda w, x: x @ half(w).T + x @ half(w).astype(x.dtype))
    y = (half(x) @ c).astype(jnp.float32) + x @ a.astype(jnp.float32)
    y = y + x @ b + x @ d + x @ e + f(w, half(x)).astype(jnp.float32)
    return (y**2).mean() * 1e-2


def vectors(params: Params, x: jax.Array) -> jax.Array:
    """A vector rearranged in every way, and reductions of a matrix."""
    b, w = params["b"], params["w"]
    square, row = b.reshape(4, 4), b[None, :, None]
    y = x @ jnp.broadcast_to(b[:, None], (WIDTH, WIDTH))
    parts = jnp.concatenate([b, b]).sum() + b[::-1][0] + b[1:5].sum() + row.sum()
    sums = w.sum(0) @ x[0] + w.max(1) @ x[1] + jnp.linalg.norm(w) + w.prod()
    soft = jax.nn.softmax(w, 1)[0, 0] + jnp.argmax(w, 0).sum() + w.min()
    return y.mean() + (square @ square).mean() + parts + sums + soft


def keys_first(params: Params, x: jax.Array) -> jax.Array:
    """A body whose first array is one of keys, and a callback that sees a weight."""
    noisy = jax.jit(lambda keys, w, x: x @ w + 0.1 * jax.random.normal(keys[0]))
    y = noisy(jax.random.split(jax.random.key(0), 3), params["w"], x)
    jax.debug.callback(lambda w, y: None, params["w"], y)
    return (y**2).mean()


RARE: dict[str, StepProgram] = {
    "mutable": StepProgram(step=mutable, params=SQUARE),
    "unknown": StepProgram(step=momentum(unknown), params=SQUARE),
    "narrow_then_wide": StepProgram(
        step=momentum(narrow_then_wide),
        params={
            **SQUARE,
            "v": jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16),
        },
        rtol=3e-2,
    ),
    "mapped": StepProgram(step=momentum(mapped), params=STACK),
    "placed_by_user": StepProgram(step=momentum(placed_by_user), params=SQUARE),
    "second_order": StepProgram(step=second_order, params=SQUARE),
    "swapped": StepProgram(step=swapped, params=SQUARE),
    "patched": StepProgram(step=patched, params=SQUARE),
    "closed_over": StepProgram(step=momentum(closed_over), params=STACK),
    "complex_numbers": StepProgram(step=momentum(complex_numbers), params=SQUARE),
    "odd_leaves": StepProgram(
        step=momentum(odd_leaves),
        params={**SQUARE, "s": (), "one": (1,), "none": (0,), "odd": (17, 3)},
    ),
    "many_casts": StepProgram(step=momentum(many_casts), params=SQUARE, rtol=3e-2),
    "vectors": StepProgram(step=momentum(vectors), params={**SQUARE, "b": (WIDTH,)}),
    "keys_first": StepProgram(step=momentum(keys_first), params=SQUARE),
}
