"""Training steps drawn at random agree with one device in double precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.end_to_end.oracle import check_parity, mesh_of

# Sizes that 8, 6, 4, 3 and 2 devices divide, and sizes that they do not.
WIDTHS = (5, 8, 12, 16, 24)
ROWS = 24

Apply = Callable[[Any, jax.Array], jax.Array]


def _dense(p: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ p["w"] + p["b"][None])


def _remat(p: Any, x: jax.Array) -> jax.Array:
    return jax.checkpoint(_dense)(p, x)


def _nested_jit(p: Any, x: jax.Array) -> jax.Array:
    return jax.jit(_dense)(p, x)


def _transposed(p: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh((p["w"].T @ x.T).T) * p["b"][None]


def _normed(p: Any, x: jax.Array) -> jax.Array:
    w = p["w"] / (1e-3 + jnp.sqrt((p["w"] ** 2).sum(0, keepdims=True)))
    return x @ w - p["b"].mean()


def _gated(p: Any, x: jax.Array) -> jax.Array:
    return jax.nn.silu(x @ p["w"]) * jax.nn.sigmoid(x @ p["w"] + p["b"][None])


def _branched(p: Any, x: jax.Array) -> jax.Array:
    return jax.lax.cond(x.sum() > 0, _dense, lambda p, x: x @ p["w"] * 0.5, p, x)


def _switched(p: Any, x: jax.Array) -> jax.Array:
    choices = [_dense, _gated, lambda p, x: x @ jnp.flip(p["w"], 1)]
    return jax.lax.switch((jnp.abs(x).sum() * 10).astype(int) % 3, choices, p, x)


LAYERS: dict[str, Apply] = {
    f.__name__.strip("_"): f
    for f in (
        _dense,
        _remat,
        _nested_jit,
        _transposed,
        _normed,
        _gated,
        _branched,
        _switched,
    )
}

# What takes a square weight may repeat it.


def _repeated(p: Any, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda x, _: (_dense(p, x), None), x, None, length=2)[0]


def _counted(p: Any, x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 2, lambda _, x: _dense(p, x), x)


def _searched(p: Any, x: jax.Array) -> jax.Array:
    """A while of unknown length, which no gradient passes."""
    w = jax.lax.stop_gradient(p["w"])
    go_on = lambda c: (c[0] < 3) & (jnp.abs(c[1]).sum() > 1e-3)  # noqa: E731
    turn = lambda c: (c[0] + 1, jnp.tanh(c[1] @ w))  # noqa: E731
    _, y = jax.lax.while_loop(go_on, turn, (0, jax.lax.stop_gradient(x)))
    return _dense(p, x) + y


def _own_inverse(p: Any, x: jax.Array) -> jax.Array:
    return _dense(p, x + x @ p["w"] @ p["w"].T)


SQUARE_LAYERS: dict[str, Apply] = {
    f.__name__.strip("_"): f for f in (_repeated, _counted, _searched, _own_inverse)
}

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9),
    "adam_clip": lambda: optax.chain(
        optax.clip_by_global_norm(0.3), optax.adamw(1e-2, weight_decay=0.1)
    ),
    "lamb": lambda: optax.lamb(1e-2),
    "rmsprop": lambda: optax.rmsprop(1e-2),
    "multi_steps": lambda: optax.MultiSteps(optax.adam(1e-2), 2),
    "muon": lambda: optax.contrib.muon(1e-2),
}


@dataclass(frozen=True)
class Spec:
    """A step to build.

    Attributes:
        layers: (kind, width out) of each layer; a kind that repeats its weight has
            no width of its own.
        stacked: how many square layers a scan runs after them.
        is_tied: whether the first weight is used once more at the end.
        num_micro: micro-batches that the step adds up in a scan of its own.
        optimizer: name in `OPTIMIZERS`.
        stage: ZeRO stage.
        num_devices: how many devices.
    """

    layers: tuple[tuple[str, int], ...]
    stacked: int
    is_tied: bool
    num_micro: int
    optimizer: str
    stage: int
    num_devices: int


SPECS = st.builds(
    Spec,
    layers=st.lists(
        st.tuples(st.sampled_from([*LAYERS, *SQUARE_LAYERS]), st.sampled_from(WIDTHS)),
        min_size=1,
        max_size=4,
    ).map(tuple),
    stacked=st.sampled_from((0, 0, 2, 3)),
    is_tied=st.booleans(),
    num_micro=st.sampled_from((1, 1, 3)),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    stage=st.sampled_from((1, 2, 3, 3)),
    num_devices=st.sampled_from((2, 4, 8, 8)),
)


def build_params(spec: Spec) -> list[dict[str, np.ndarray]]:
    rng, width, params = np.random.default_rng(0), 16, []
    for kind, wanted in spec.layers:
        out = width if kind in SQUARE_LAYERS else wanted
        w = rng.normal(size=(width, out)) / np.sqrt(width)
        params.append({"w": w, "b": rng.normal(size=(out,)) * 0.1})
        width = out
    if spec.stacked:
        w = rng.normal(size=(spec.stacked, width, width)) / np.sqrt(width)
        params.append({"w": w, "b": rng.normal(size=(spec.stacked, width)) * 0.1})
    return params


def build_loss(spec: Spec) -> Callable[..., jax.Array]:
    def loss(params: Any, x: jax.Array) -> jax.Array:
        for (kind, _), p in zip(spec.layers, params, strict=False):
            x = (LAYERS | SQUARE_LAYERS)[kind](p, x)
        if spec.stacked:
            x, _ = jax.lax.scan(lambda x, p: (_dense(p, x), None), x, params[-1])
        if spec.is_tied:
            first = params[0]["w"]
            x = x[:, :1] * first[:, 0][None] @ first
        return (x**2).mean()

    return loss


def build_step(spec: Spec, tx: Any) -> Callable[..., Any]:
    loss = build_loss(spec)

    def random_step(params: Any, opt_state: Any, x: jax.Array) -> Any:
        if spec.num_micro == 1:
            value, grads = jax.value_and_grad(loss)(params, x)
        else:

            def turn(total: Any, rows: jax.Array) -> Any:
                one = jax.value_and_grad(loss)(params, rows)
                return jax.tree.map(jnp.add, total, one), None

            zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
            micros = x.reshape(spec.num_micro, -1, x.shape[-1])
            (value, grads), _ = jax.lax.scan(turn, zeros, micros)
            grads = jax.tree.map(lambda g: g / spec.num_micro, grads)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return random_step


@given(SPECS)
@settings(max_examples=9)
def test_random_steps_agree_with_one_device(spec: Spec) -> None:
    tx = OPTIMIZERS[spec.optimizer]()
    draw = lambda i: np.random.default_rng(i).normal(size=(ROWS, 16))  # noqa: E731
    with jax.enable_x64(True):
        params = build_params(spec)
        check_parity(
            build_step(spec, tx),
            (params, tx.init(params)),
            lambda i: (draw(i),),
            lambda out: out[:2],
            num_steps=4,
            stage=spec.stage,
            mesh=mesh_of(spec.num_devices),
        )
