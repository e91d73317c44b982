"""The optimizers by name, beside optax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jzero
from jzero.errors import ConfigError

PARAMS = {
    "w": jnp.linspace(-1, 1, 24).reshape(4, 6),
    "b": jnp.ones(3),
    "s": jnp.ones(()),
}


def schedule(count: Any) -> Any:
    return 1e-2 / (1 + count)


PAIRS: dict[str, tuple[Any, Any]] = {
    "adamw": (
        jzero.optim.adamw(schedule, weight_decay=0.1, clip_norm=0.5),
        optax.chain(
            optax.clip_by_global_norm(0.5), optax.adamw(schedule, weight_decay=0.1)
        ),
    ),
    "mask": (
        jzero.optim.adamw(1e-2, mask={"w": True, "b": False, "s": False}),
        optax.adamw(1e-2, mask={"w": True, "b": False, "s": False}),
    ),
    "adam": (jzero.optim.adam(1e-2), optax.adam(1e-2)),
    "lion": (jzero.optim.lion(1e-2), optax.lion(1e-2)),
    "sgd": (
        jzero.optim.sgd(1e-2, nesterov=True),
        optax.sgd(1e-2, momentum=0.9, nesterov=True),
    ),
}


def train(tx: Any, *, is_applied: bool, num_steps: int = 10) -> Any:
    def turn(carry: Any, step: Any) -> Any:
        params, state = carry
        grads = jax.tree.map(lambda p: jnp.sin(p * 3 + step), params)
        if is_applied:
            params, state, _ = tx.apply(grads, state, params)
        else:
            updates, state = tx.update(grads, state, params)
            params = optax.apply_updates(params, updates)
        return (params, state), None

    start = PARAMS, tx.init(PARAMS)
    return jax.lax.scan(turn, start, jnp.arange(num_steps, dtype=jnp.float32))[0][0]


@pytest.mark.parametrize("name", PAIRS)
def test_both_ways_give_the_numbers_of_optax(name: str) -> None:
    ours, theirs = PAIRS[name]
    want = train(theirs, is_applied=False)
    for is_applied in (False, True):
        got = train(ours, is_applied=is_applied)
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "chain": lambda tx: optax.chain(optax.clip(0.1), tx),
    "multi_steps": lambda tx: optax.MultiSteps(tx, 2).gradient_transformation(),
    "masked": lambda tx: optax.masked(tx, {"w": True, "b": False, "s": True}),
    "apply_if_finite": lambda tx: optax.apply_if_finite(tx, 3),
    "multi_transform": lambda tx: optax.multi_transform(
        {"a": tx, "b": optax.set_to_zero()}, {"w": "a", "b": "b", "s": "a"}
    ),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_optax_takes_it_for_one_of_its_own(name: str) -> None:
    wrap = WRAPPERS[name]
    ours = train(wrap(jzero.optim.adamw(1e-2)), is_applied=False, num_steps=4)
    theirs = train(wrap(optax.adamw(1e-2)), is_applied=False, num_steps=4)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def test_the_learning_rate_may_be_injected() -> None:
    def make(learning_rate: Any) -> Any:
        return jzero.optim.adamw(learning_rate)

    tx = optax.inject_hyperparams(make)(learning_rate=1e-2)
    state = tx.init(PARAMS)
    assert float(state.hyperparams["learning_rate"]) == pytest.approx(1e-2)
    updates, _ = jax.jit(tx.update)(PARAMS, state, PARAMS)
    assert float(updates["b"][0]) == pytest.approx(-1e-2, rel=1e-2)
    with pytest.raises(ConfigError, match=r"(?s)part of the program.*b1"):
        jzero.optim.adamw(1e-2, b1=jnp.float32(0.9))  # pyright: ignore


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"state": "int4"}, "'f32', 'int8'"),
        ({"rounding": "up"}, "'nearest', 'stochastic'"),
        ({"params": "f64"}, "'bf16'"),
        ({"backend": "cuda"}, "'mosaic_gpu'"),
        ({"speed": 1}, "Unknown options: speed"),
        ({"seed": 3}, "no effect"),
        ({"keep_float32": "x"}, "no effect"),
        ({"min_coded_elems": 1}, "no effect"),
        ({"weight_decay": 0.0, "mask": True}, "no effect"),
        ({"rounding": "stochastic", "params": "f16"}, "no effect"),
        ({"state": "int8", "keep_float32": "("}, "regular expression"),
    ],
)
def test_what_cannot_be_or_does_nothing_is_refused(options: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as error:
        jzero.optim.adamw(1e-3, **options)
    assert "Remedy" in str(error.value)
