"""Ways to train that hold more than one model, optimizer or kind of state."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.models.case import Case, normal, vectors

TX = optax.adam(1e-2)


def _params(seed: int, out: int = 16) -> dict[str, np.ndarray]:
    return {
        "up": normal(seed, 24, 32),
        "down": normal(seed + 1, 32, out),
        "b": np.zeros((1, out)),
    }


def _net(p: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ p["up"]) @ p["down"] + p["b"]


def _descend(params: Any, opt: Any, grads: Any) -> tuple[Any, Any]:
    updates, opt = TX.update(grads, opt, params)
    return optax.apply_updates(params, updates), opt


def _adversaries() -> Case:
    """Two models with an optimizer each, which judge one another in turn."""

    def step(maker: Any, judge: Any, maker_opt: Any, judge_opt: Any, x: Any) -> Any:
        def judged(j: Any, m: Any) -> jax.Array:
            real, made = _net(j, x), _net(j, _net(m, x))
            return (jax.nn.softplus(-real) + jax.nn.softplus(made)).mean()

        judge_loss, grads = jax.value_and_grad(judged)(judge, maker)
        judge, judge_opt = _descend(judge, judge_opt, grads)
        maker_loss, grads = jax.value_and_grad(lambda m: -judged(judge, m))(maker)
        maker, maker_opt = _descend(maker, maker_opt, grads)
        return maker, judge, maker_opt, judge_opt, (maker_loss, judge_loss)

    def make() -> tuple[Any, ...]:
        maker, judge = _params(0, out=24), _params(2, out=24)
        return maker, judge, TX.init(maker), TX.init(judge)

    return Case(
        step=step,
        make=make,
        data=lambda i: (vectors(i),),
        new_state=lambda out: out[:4],
    )


def _reference_model() -> Case:
    """A fixed copy of the model travels along as an argument of its own."""

    def step(params: Any, opt_state: Any, reference: Any, x: jax.Array) -> Any:
        def loss(p: Any) -> jax.Array:
            margin = _net(p, x) - jax.lax.stop_gradient(_net(reference, x))
            return -jax.nn.log_sigmoid(margin.sum(1)).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return *_descend(params, opt_state, grads), reference, value

    def make() -> tuple[Any, ...]:
        return _params(0), TX.init(_params(0)), _params(0)

    return Case(
        step=step,
        make=make,
        data=lambda i: (vectors(i),),
        new_state=lambda out: out[:3],
    )


def _teacher() -> Case:
    """A slow average teaches; a queue of its outputs and a mean are state too."""

    def step(state: Any, batch: Any, rng: jax.Array) -> Any:
        noise = 0.1 * jax.random.normal(rng, batch["x"].shape, jnp.float64)
        target = _net(state["teacher"], batch["x"]) - state["center"]

        def loss(p: Any) -> jax.Array:
            out = _net(p, batch["x"] + noise)
            near = ((out - target) ** 2).mean()
            return near + jax.nn.logsumexp(out @ state["queue"].T, axis=1).mean()

        value, grads = jax.value_and_grad(loss)(state["student"])
        student, opt = _descend(state["student"], state["opt"], grads)
        keep = jnp.minimum(0.99, state["count"] / (state["count"] + 1))
        new = {
            "student": student,
            "teacher": jax.tree.map(
                lambda t, s: keep * t + (1 - keep) * s, state["teacher"], student
            ),
            "center": 0.9 * state["center"] + 0.1 * target.mean(0, keepdims=True),
            "queue": jnp.roll(state["queue"], 16, 0).at[:16].set(target),
            "opt": opt,
            "count": state["count"] + 1,
        }
        return new, {"loss": value, "keep": keep}

    def make() -> tuple[Any, ...]:
        state = {
            "student": _params(0),
            "teacher": _params(0),
            "center": np.zeros((1, 16)),
            "queue": normal(9, 64, 16),
            "opt": TX.init(_params(0)),
            "count": np.int32(1),
        }
        return (state,)

    return Case(
        step=step,
        make=make,
        data=lambda i: ({"x": vectors(i)}, jax.random.key(i)),
    )


def _private_gradients() -> Case:
    """One gradient per row, each clipped, then noise."""

    def step(params: Any, opt_state: Any, key: jax.Array, x: jax.Array) -> Any:
        key, now = jax.random.split(key)

        def one(row: jax.Array) -> Any:
            grads = jax.grad(lambda p: (_net(p, row[None]) ** 2).mean())(params)
            scale = jnp.minimum(1.0, 0.1 / optax.tree.norm(grads))
            return jax.tree.map(lambda g: g * scale, grads)

        grads = jax.tree.map(lambda g: g.mean(0), jax.vmap(one)(x))
        leaves, treedef = jax.tree.flatten(grads)
        keys = jax.random.split(now, len(leaves))
        noisy = [
            g + 0.01 * jax.random.normal(k, g.shape, g.dtype)
            for g, k in zip(leaves, keys, strict=True)
        ]
        params, opt_state = _descend(params, opt_state, treedef.unflatten(noisy))
        return params, opt_state, key

    def make() -> tuple[Any, ...]:
        return _params(0), TX.init(_params(0)), jax.random.key(5)

    return Case(
        step=step,
        make=make,
        data=lambda i: (vectors(i),),
        new_state=lambda out: out,
    )


def _evolution() -> Case:
    """No gradient at all: the update is a sum of drawn directions."""

    def step(params: Any, key: jax.Array, x: jax.Array) -> Any:
        key, now = jax.random.split(key)
        flat, unflatten = jax.flatten_util.ravel_pytree(params)

        def turn(total: jax.Array, k: jax.Array) -> Any:
            direction = jax.random.normal(k, flat.shape, flat.dtype)
            score = lambda d: (_net(unflatten(flat + d), x) ** 2).mean()  # noqa: E731
            gain = score(0.01 * direction) - score(-0.01 * direction)
            return total + gain * direction, gain

        total, gains = jax.lax.scan(turn, 0 * flat, jax.random.split(now, 4))
        return unflatten(flat - 0.1 * total), key, gains.mean()

    return Case(
        step=step,
        make=lambda: (_params(0), jax.random.key(6)),
        data=lambda i: (vectors(i),),
        new_state=lambda out: out[:2],
    )


def _inner_loop() -> Case:
    """Weights that are good to adapt: a gradient through gradient steps."""

    def step(params: Any, opt_state: Any, near: jax.Array, far: jax.Array) -> Any:
        def adapted(p: Any) -> jax.Array:
            def turn(q: Any, _: None) -> Any:
                grads = jax.grad(lambda q: (_net(q, near) ** 2).mean())(q)
                return jax.tree.map(lambda a, g: a - 0.1 * g, q, grads), None

            q, _ = jax.lax.scan(turn, p, None, length=2)
            return (_net(q, far) ** 2).mean()

        value, grads = jax.value_and_grad(adapted)(params)
        return *_descend(params, opt_state, grads), value

    return Case(
        step=step,
        make=lambda: (_params(0), TX.init(_params(0))),
        data=lambda i: (vectors(i), vectors(50 + i)),
        new_state=lambda out: out[:2],
    )


def _sharpness() -> Case:
    """Two gradients per step: one to climb with, one to descend with."""

    def step(params: Any, opt_state: Any, x: jax.Array) -> Any:
        loss = lambda p: (_net(p, x) ** 2).mean()  # noqa: E731
        grads = jax.grad(loss)(params)
        norm = optax.tree.norm(grads)
        above = jax.tree.map(lambda p, g: p + 0.05 * g / norm, params, grads)
        value, grads = jax.value_and_grad(loss)(above)
        return value, *_descend(params, opt_state, grads)

    return Case(
        step=step,
        make=lambda: (_params(0), TX.init(_params(0))),
        data=lambda i: (vectors(i),),
        new_state=lambda out: out[1:],
    )


REGIMES: dict[str, Case] = {
    "adversaries": _adversaries(),
    "reference_model": _reference_model(),
    "teacher": _teacher(),
    "private_gradients": _private_gradients(),
    "evolution": _evolution(),
    "inner_loop": _inner_loop(),
    "sharpness": _sharpness(),
}
