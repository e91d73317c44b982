"""Models whose weights meet less common operations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.end_to_end.oracle import mesh_of
from tests.models.case import Case, normal, plain_case

NUM_EXPERTS, CAPACITY = 4, 6


def _top_1_experts(params: Any, x: jax.Array) -> jax.Array:
    """Each row goes to one expert, if that has room; rows are moved by scatter."""
    gates = jax.nn.softmax(x @ params["router"])
    expert, gate = gates.argmax(-1), gates.max(-1)
    one_hot = jax.nn.one_hot(expert, NUM_EXPERTS, dtype=jnp.int32)
    place = (jnp.cumsum(one_hot, 0) * one_hot).sum(-1) - 1
    has_room = place < CAPACITY
    slot = jnp.where(has_room, expert * CAPACITY + place, NUM_EXPERTS * CAPACITY)
    buffer = jnp.zeros((NUM_EXPERTS * CAPACITY + 1, x.shape[1]), x.dtype)
    sent = buffer.at[slot].set(x)[:-1].reshape(NUM_EXPERTS, CAPACITY, -1)
    hidden = jax.nn.relu(jnp.einsum("ecd,edf->ecf", sent, params["up"]))
    out = jnp.einsum("ecf,efd->ecd", hidden, params["down"])
    out = jnp.concatenate([out.reshape(-1, x.shape[1]), buffer[:1]])
    balance = NUM_EXPERTS * (one_hot.mean(0) * gates.mean(0)).sum()
    return ((x - out[slot] * gate[:, None]) ** 2).mean() + 0.01 * balance


def _ragged_experts(params: Any, x: jax.Array) -> jax.Array:
    """Rows sorted by expert, multiplied group by group."""
    expert = (x @ params["router"]).argmax(-1)
    order = jnp.argsort(expert)
    sizes = jnp.bincount(expert, length=NUM_EXPERTS)
    hidden = jax.lax.ragged_dot(x[order], params["up"], sizes)
    out = jax.lax.ragged_dot(jax.nn.relu(hidden), params["down"], sizes)
    return ((x[order] - out) ** 2).mean()


def _expert_params() -> dict[str, Any]:
    return {
        "router": normal(0, 24, NUM_EXPERTS),
        "up": normal(1, NUM_EXPERTS, 24, 32),
        "down": normal(2, NUM_EXPERTS, 32, 24),
    }


def _state_space(params: Any, x: jax.Array) -> jax.Array:
    """A linear recurrence along each row, by an associative scan."""
    decay = jax.nn.sigmoid(params["decay"])[None, None] * jnp.ones((*x.shape, 1))
    inputs = x[..., None] * params["in"][None, None]

    def join(left: Any, right: Any) -> Any:
        return left[0] * right[0], left[1] * right[0] + right[1]

    _, states = jax.lax.associative_scan(join, (decay, inputs), axis=1)
    return (jnp.tanh(states @ params["out"]) ** 2).mean()


def _mapped_rows(params: Any, x: jax.Array) -> jax.Array:
    """`lax.map` over positions and vmap over rows."""

    def at(column: jax.Array) -> jax.Array:
        return jax.vmap(lambda v: jnp.tanh(v * params["u"] @ params["w"]))(column)

    return (jax.lax.map(at, x.T[:6]) ** 2).mean()


@jax.custom_jvp
def _soft_sign(w: jax.Array) -> jax.Array:
    return w / (1 + jnp.abs(w))


@_soft_sign.defjvp
def _soft_sign_jvp(primals: Any, tangents: Any) -> Any:
    (w,), (t,) = primals, tangents
    return _soft_sign(w), t * jnp.exp(-jnp.abs(w))  # not the true derivative


def _own_forward_rule(params: Any, x: jax.Array) -> jax.Array:
    return ((x @ _soft_sign(params["w"])) ** 2).mean()


def _second_order(params: Any, x: jax.Array) -> jax.Array:
    """A penalty on the gradient by the inputs."""

    def score(row: jax.Array) -> jax.Array:
        return jnp.tanh(row @ params["w"]).sum()

    slopes = jax.vmap(jax.grad(score))(x)
    return ((jnp.sqrt((slopes**2).sum(1)) - 1) ** 2).mean()


def _fixed_point(params: Any, x: jax.Array) -> jax.Array:
    """A layer defined by an equation, differentiated through its solution."""
    w = params["w"] / 4

    @jax.custom_vjp
    def solve(w: jax.Array, x: jax.Array) -> jax.Array:
        turn = lambda _, z: jnp.tanh(z @ w + x)  # noqa: E731
        return jax.lax.fori_loop(0, 30, turn, jnp.zeros_like(x))

    def forward(w: jax.Array, x: jax.Array) -> Any:
        z = solve(w, x)
        return z, (w, x, z)

    def backward(kept: Any, g: jax.Array) -> Any:
        w, x, z = kept
        _, pull = jax.vjp(lambda z: jnp.tanh(z @ w + x), z)
        u = jax.lax.fori_loop(0, 30, lambda _, u: g + pull(u)[0], g)
        return jax.vjp(lambda w, x: jnp.tanh(z @ w + x), w, x)[1](u)

    solve.defvjp(forward, backward)
    return (solve(w, x) ** 2).mean()


def _spectral_norm(params: Any, x: jax.Array) -> jax.Array:
    w = params["w"]
    v = jnp.ones((24, 1)) / 5
    for _ in range(2):
        v = w.T @ (w @ jax.lax.stop_gradient(v))
        v = v / jnp.sqrt((v**2).sum())
    return ((x @ w / jnp.sqrt(((w @ v) ** 2).sum())) ** 2).mean()


def _weight_from_weights(params: Any, x: jax.Array) -> jax.Array:
    """A network that writes the weights of another."""
    made = jnp.tanh(params["code"] @ params["w"]).reshape(24, 8)
    return (jnp.tanh(x @ made) ** 2).mean()


def _attended_rows(params: Any, x: jax.Array) -> jax.Array:
    """Rows of the batch look at each other, as in contrastive losses."""
    y = x @ params["w"]
    y = y / jnp.sqrt((y**2).sum(1, keepdims=True))
    scores = y @ (x @ params["v"]).T
    return -jnp.diag(jax.nn.log_softmax(scores)).mean()


def _constrained(params: Any, x: jax.Array) -> jax.Array:
    """The user's own constraints, on weights in a loop and on activations."""
    mesh = mesh_of(8)
    put = lambda v, *spec: jax.lax.with_sharding_constraint(  # noqa: E731
        v, NamedSharding(mesh, P(*spec))
    )

    def turn(c: jax.Array, w: jax.Array) -> Any:
        return put(jnp.tanh(c @ put(w)), "data"), None

    y, _ = jax.lax.scan(turn, put(x, "data"), params["stack"])
    return (y**2).mean()


def _square(*names: str) -> dict[str, Any]:
    return {name: normal(i, 24, 24) for i, name in enumerate(names, 5)}


ARCHITECTURES: dict[str, Case] = {
    "top_1_experts": plain_case(_top_1_experts, _expert_params()),
    "ragged_experts": plain_case(_ragged_experts, _expert_params()),
    "state_space": plain_case(
        _state_space,
        {"decay": normal(3, 8), "in": normal(4, 8), "out": normal(5, 8, 16)},
    ),
    "mapped_rows": plain_case(
        _mapped_rows, {"u": normal(6, 16), "w": normal(7, 16, 16)}
    ),
    "own_forward_rule": plain_case(_own_forward_rule, _square("w")),
    "second_order": plain_case(_second_order, _square("w")),
    "fixed_point": plain_case(_fixed_point, _square("w")),
    "spectral_norm": plain_case(_spectral_norm, _square("w")),
    "weight_from_weights": plain_case(
        _weight_from_weights, {"code": normal(8, 1, 16), "w": normal(9, 16, 192)}
    ),
    "attended_rows": plain_case(_attended_rows, _square("w", "v")),
    "constrained": plain_case(_constrained, {"stack": normal(10, 4, 24, 24)}),
}
