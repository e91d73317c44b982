"""Small models as plain functions: `loss(params, x)` and their parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Loss = Callable[[Any, jax.Array], jax.Array]


def _normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape) * 0.2


def rows(step: int, batch: int = 16, width: int = 24) -> np.ndarray:
    """A batch of `step`."""
    return np.random.default_rng(1000 + step).normal(size=(batch, width))


def mlp_params() -> dict[str, Any]:
    return {
        "a": {"w": _normal(0, 24, 32), "b": np.zeros((1, 32))},
        "c": {"w": _normal(1, 32, 16), "b": np.zeros((1, 16))},
    }


def mlp(params: Any, x: jax.Array) -> jax.Array:
    hidden = jnp.tanh(x @ params["a"]["w"] + params["a"]["b"])
    return ((hidden @ params["c"]["w"] + params["c"]["b"] - 0.3) ** 2).mean()


def _scanned(params: Any, x: jax.Array, *, is_remat: bool, **kw: Any) -> jax.Array:
    def layer(c: jax.Array, w: Any) -> tuple[jax.Array, None]:
        return jnp.tanh(c @ w["w"].T + w["b"]), None

    body = jax.checkpoint(layer) if is_remat else layer
    return (jax.lax.scan(body, x, params, **kw)[0] ** 2).mean()


def _stacked() -> dict[str, np.ndarray]:
    return {"w": _normal(2, 4, 24, 24), "b": np.zeros((4, 1, 24))}


def _unrolled(params: Any, x: jax.Array) -> jax.Array:
    for i in range(4):
        layer = jax.checkpoint(lambda c, w, b: jnp.tanh(c @ w + b))
        x = layer(x, params["w"][i], params["b"][i])
    return (x**2).mean()


def _tied(params: Any, x: jax.Array) -> jax.Array:
    ids = (jnp.abs(x) * 10).astype(int) % 32
    hidden = jnp.tanh(jnp.take(params["table"], ids, axis=0).sum(1))
    return jax.nn.logsumexp(hidden @ params["table"].T, axis=-1).mean()


def _experts(params: Any, x: jax.Array) -> jax.Array:
    gates = jax.nn.softmax(x @ params["router"])
    chosen = jax.nn.one_hot(gates.argmax(-1), 4) * gates
    hidden = jax.nn.relu(jnp.einsum("bd,edf->ebf", x, params["up"]))
    out = jnp.einsum("ebf,efd,be->bd", hidden, params["down"], chosen)
    return ((x - out) ** 2).mean()


def _branches(params: Any, x: jax.Array) -> jax.Array:
    y = jax.lax.cond(
        x.mean() > 0,
        lambda p, v: v @ p["w"],
        lambda p, v: jnp.tanh(v) @ p["v"],
        params,
        x,
    )
    looped = jax.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] @ params["w"]), (0, x)
    )[1]
    return ((y + jax.lax.stop_gradient(looped)) ** 2).mean()


@jax.custom_vjp
def _matmul(x: jax.Array, w: jax.Array) -> jax.Array:
    return x @ w


_matmul.defvjp(
    lambda x, w: (x @ w, (x, w)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g)
)


def _custom(params: Any, x: jax.Array) -> jax.Array:
    y = jax.nn.relu(_matmul(x, params["w"]))  # relu is a custom_jvp
    jax.debug.callback(lambda v: None, y.mean())
    with jax.named_scope("mine"):
        return (y**2).mean()


def _lora(params: Any, x: jax.Array) -> jax.Array:
    base = jax.lax.stop_gradient(params["base"])
    return (jnp.tanh(x @ (base + params["down"] @ params["up"])) ** 2).mean()


def _conv(params: Any, x: jax.Array) -> jax.Array:
    image = x.reshape(x.shape[0], 4, 6, 1)
    y = jax.lax.conv_general_dilated(
        image, params["k"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    y = (y - y.mean((0, 1, 2), keepdims=True)) / (1e-3 + y.std(keepdims=True))
    return (jax.nn.relu(y).reshape(x.shape[0], -1) @ params["w"]).mean() ** 2


def _recurrent(params: Any, x: jax.Array) -> jax.Array:
    def turn(carry: jax.Array, column: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(carry @ params["w"] + column[:, None] * params["u"]), None

    start = jnp.broadcast_to(params["h0"], (x.shape[0], 16))
    return (jax.lax.scan(turn, start, x.T)[0] ** 2).mean()


def user_mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), ("data",))


def _with_regions(params: Any, x: jax.Array) -> jax.Array:
    mesh, spec = user_mesh(), PartitionSpec("data")
    y = jax.lax.with_sharding_constraint(x @ params["w"], NamedSharding(mesh, spec))
    y = jax.shard_map(jnp.tanh, mesh=mesh, in_specs=spec, out_specs=spec)(y)
    return (y**2).mean()


def _square() -> dict[str, np.ndarray]:
    return {"w": _normal(3, 24, 24), "v": _normal(4, 24, 24)}


MODELS: dict[str, tuple[Loss, Any]] = {
    "mlp": (mlp, mlp_params()),
    "scan": (lambda p, x: _scanned(p, x, is_remat=False), _stacked()),
    "scan_remat": (lambda p, x: _scanned(p, x, is_remat=True), _stacked()),
    "scan_reverse_unroll": (
        lambda p, x: _scanned(p, x, is_remat=True, reverse=True, unroll=2),
        _stacked(),
    ),
    "unrolled_remat": (_unrolled, _stacked()),
    "tied": (_tied, {"table": _normal(5, 32, 16)}),
    "experts": (
        _experts,
        {
            "router": _normal(6, 24, 4),
            "up": _normal(7, 4, 24, 32),
            "down": _normal(8, 4, 32, 24),
        },
    ),
    "cond_while": (_branches, _square()),
    "custom_rules": (_custom, _square()),
    "lora": (
        _lora,
        {
            "base": _normal(9, 24, 16),
            "down": _normal(10, 24, 4),
            "up": _normal(11, 4, 16),
        },
    ),
    "conv": (_conv, {"k": _normal(12, 3, 3, 1, 8), "w": _normal(13, 192, 8)}),
    "recurrent": (
        _recurrent,
        {"w": _normal(14, 16, 16), "u": _normal(15, 1, 16), "h0": _normal(16, 1, 16)},
    ),
    "regions": (_with_regions, {"w": _normal(17, 24, 24)}),
}


def step_of(loss: Loss, tx: optax.GradientTransformation) -> Callable[..., Any]:
    """`(params, opt_state, x) -> (params, opt_state, loss)`."""

    def train_step(params: Any, opt_state: Any, x: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return train_step
