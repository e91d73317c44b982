"""Training steps as they are written in the wild, called as they are."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jzero
from tests.end_to_end.oracle import (
    SHARD_ALL,
    CompileCounter,
    assert_trees_close,
    check_parity,
)
from tests.end_to_end.small import mlp, mlp_params, rows, step_of

TX = optax.adam(1e-2)


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def _state() -> tuple[Any, Any]:
    params = mlp_params()
    return params, TX.init(params)


def test_loss_first_and_gradients_returned() -> None:
    def step(params, opt_state, x):
        loss, grads = jax.value_and_grad(mlp)(params, x)
        updates, opt_state = TX.update(grads, opt_state, params)
        return loss, opt_state, optax.apply_updates(params, updates)

    check_parity(step, _state(), lambda i: (rows(i),), lambda out: (out[2], out[1]))


def test_gradients_as_aux_are_told_from_parameters_by_order() -> None:
    def step(params, x):
        loss, grads = jax.value_and_grad(mlp)(params, x)
        new = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return new, grads, loss

    sharded = check_parity(
        step, _state()[:1], lambda i: (rows(i),), lambda out: out[:1]
    )
    notes = next(iter(sharded._programs.values())).plan.notes
    assert any("2 outputs have this structure" in n and "output[0]" in n for n in notes)


def test_ema_and_key() -> None:
    def step(params, opt_state, ema, key):
        key, now = jax.random.split(key)
        x = jax.random.normal(now, (16, 24), jnp.float64)
        grads = jax.grad(mlp)(params, x)
        updates, opt_state = TX.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        ema = jax.tree.map(lambda e, p: 0.9 * e + 0.1 * p, ema, params)
        return params, opt_state, ema, key

    params, opt_state = _state()
    state = (params, opt_state, mlp_params(), jax.random.key(1))
    sharded = check_parity(step, state, lambda i: (), lambda out: out)
    plan = next(iter(sharded._programs.values())).plan
    roles = {p.path.split("[")[0]: p.role for p in plan.state if "'w'" in p.path}
    assert roles["params"] == "parameter"
    assert roles["ema"] == "optimizer"


def test_already_jitted_with_donation_and_a_static_mode() -> None:
    @functools.partial(jax.jit, donate_argnums=(0, 1), static_argnames=("mode",))
    def step(params, opt_state, x, mode="train"):
        loss, grads = jax.value_and_grad(mlp)(params, x)
        if mode == "train":
            updates, opt_state = TX.update(grads, opt_state, params)
            params = optax.apply_updates(params, updates)
        return params, opt_state, loss

    sharded = jzero.shard_train_step(step, config=SHARD_ALL)
    alone = step_of(mlp, TX)
    ours, theirs = _state(), _state()
    for i in range(3):
        ours = sharded(*ours, rows(i), mode="train")[:2]
        theirs = alone(*theirs, rows(i))[:2]
    *ours, _ = sharded(*ours, rows(3), mode="eval")
    *ours, _ = sharded(*ours, rows(3), "eval")
    assert_trees_close(tuple(ours), tuple(theirs), rtol=1e-9)
    assert "static: " in " ".join(sharded.plan(*ours, rows(3), "eval").notes)


def test_static_argnums_and_a_flag() -> None:
    def step(params, flag, x):
        return (jax.tree.map(lambda p: p * (2 if flag else 1), params), x.sum())

    sharded = jzero.shard_train_step(step, static_argnums=1, config=SHARD_ALL)
    params = mlp_params()
    new, _ = sharded(params, True, rows(0))
    np.testing.assert_array_equal(new["a"]["w"], 2 * params["a"]["w"])


def test_model_as_a_pair_of_params_and_statistics() -> None:
    def step(model, opt_state, batch):
        params, stats = model

        def loss(p):
            new = {"mean": stats["mean"] * 0.9 + 0.1 * batch["x"].mean(0)}
            return mlp(p, batch["x"]), new

        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt_state = TX.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return (params, stats), opt_state, value, {"twice": value * 2}

    params, opt_state = _state()
    check_parity(
        step,
        ((params, {"mean": np.zeros(24)}), opt_state),
        lambda i: ({"x": rows(i)},),
        lambda out: out[:2],
    )


class Named(NamedTuple):
    params: Any
    opt_state: Any


@flax.struct.dataclass
class Record:
    params: Any
    opt_state: Any
    tx: Any = flax.struct.field(pytree_node=False, default=TX)


@pytest.mark.parametrize(
    "make", (Named, Record, lambda p, o: {"params": p, "opt_state": o})
)
def test_state_objects(make: Any) -> None:
    def step(state, batch):
        get = (
            state.get if isinstance(state, dict) else functools.partial(getattr, state)
        )
        loss, grads = jax.value_and_grad(mlp)(get("params"), batch)
        updates, opt_state = TX.update(grads, get("opt_state"), get("params"))
        return make(optax.apply_updates(get("params"), updates), opt_state), loss

    check_parity(step, (make(*_state()),), lambda i: (rows(i),), lambda out: out[:1])


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("is_split", (False, True))
def test_accumulation_in_the_users_scan(stage: int, is_split: bool) -> None:
    def step(params, opt_state, x):
        micro = x if is_split else x.reshape(4, -1, 24)

        def turn(total, rows_):
            loss, grads = jax.value_and_grad(mlp)(params, rows_)
            return jax.tree.map(jnp.add, total, grads), loss

        zeros = jax.tree.map(jnp.zeros_like, params)
        grads, losses = jax.lax.scan(turn, zeros, micro)
        grads = jax.tree.map(lambda g: g / 4, grads)
        updates, opt_state = TX.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, losses.mean()

    shape = (4, 8, 24) if is_split else (32, 24)
    sharded = check_parity(
        step,
        _state(),
        lambda i: (rows(i, 32).reshape(shape),),
        lambda out: out[:2],
        stage=stage,
    )
    (leaf,) = next(iter(sharded._programs.values())).plan.batch
    assert leaf.spec[1 if is_split else 0] == "data"


@pytest.mark.parametrize("stage", (1, 2, 3))
def test_a_whole_loop_of_steps_in_one_scan(stage: int) -> None:
    one = step_of(mlp, TX)

    def step(state, batches):
        def turn(carry, x):
            *carry, loss = one(*carry, x)
            return tuple(carry), loss

        return jax.lax.scan(turn, state, batches)

    check_parity(
        step,
        (_state(),),
        lambda i: (rows(i, 32).reshape(4, 8, 24),),
        lambda out: out[:1],
        stage=stage,
    )


def test_odd_leaves_are_kept_bit_for_bit() -> None:
    state = {
        "w": np.ones((16, 4)),
        "scalar": np.float64(1.0),
        "one": np.ones(1),
        "empty": np.zeros((0,)),
        "table": np.arange(12, dtype=np.int32),
        "flag": np.array(True),
    }

    def step(state, x):
        def loss(p):
            return ((x @ p["w"]) * p["scalar"]).mean() + p["one"].sum()

        trained = {k: state[k] for k in ("w", "scalar", "one")}
        grads = jax.grad(loss)(trained)
        new = jax.tree.map(lambda p, g: p - 0.1 * g, trained, grads)
        return {**state, **new}, loss(trained)

    check_parity(step, (state,), lambda i: (rows(i, 8, 16),), lambda out: out[:1])


def test_other_batch_shapes_compile_their_own_program() -> None:
    sharded = jzero.shard_train_step(step_of(mlp, TX), config=SHARD_ALL)
    state = _state()
    with CompileCounter("train_step") as counter:
        for i, batch in enumerate((16, 8, 16, 8)):
            state = sharded(*state, rows(i, batch))[:2]
    assert counter.count == 2
