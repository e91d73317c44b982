"""What a user does wrong, and what they are told; nothing of theirs is lost."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jzero

SHARD_ALL = jzero.ZeroConfig(persistence_threshold=0)
TX = optax.adam(1e-2)


def train_step(params: Any, opt_state: Any, x: jax.Array) -> Any:
    def loss(p):
        return ((x @ p["w"]) ** 2).mean() + p["b"].sum() ** 2

    value, grads = jax.value_and_grad(loss)(params)
    updates, opt_state = TX.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


def make_state() -> tuple[Any, Any]:
    params = {"w": jnp.ones((24, 16)), "b": jnp.zeros((16,))}
    return params, TX.init(params)


def batch(rows: int = 16) -> np.ndarray:
    return np.random.default_rng(rows).normal(size=(rows, 24)).astype(np.float32)


def make_step(**settings: Any) -> jzero.TrainStep:
    return jzero.shard_train_step(train_step, config=SHARD_ALL, **settings)


def check_usable(step: jzero.TrainStep, state: Any) -> None:
    """The caller's state survived the failure."""
    *state, loss = step(*state, batch())
    assert np.isfinite(float(loss))
    step(*state, batch())


def test_batch_that_does_not_divide() -> None:
    step = make_step()
    state = step.shard(make_state())
    for _ in range(2):  # also on the quick path
        with pytest.raises(jzero.BatchError, match=r"x\b.*10(.|\n)*8"):
            step(*state, batch(10))
        *state, _ = step(*state, batch())
    with pytest.raises(jzero.BatchError, match="10"):
        step.shard_batch(batch(10))
    check_usable(step, state)


def test_donated_state_names_its_leaves_and_the_remedy() -> None:
    step = make_step()
    old = step.shard(make_state())
    new = step(*old, batch())[:2]
    assert all(x.is_deleted() for x in jax.tree.leaves(old))
    with pytest.raises(jzero.DonationError) as error:
        step(*old, batch())
    for part in ("params['w']", "opt_state[0].count", "Remedy"):
        assert part in str(error.value)
    for use in (step.shard, step.gather):
        with pytest.raises(jzero.DonationError, match=r"\['w'\]"):
            use(old)
    check_usable(step, new)


def test_the_callers_own_arrays_are_never_donated() -> None:
    mine = make_state()
    step = make_step()
    step(*mine, batch())
    step.shard(mine)
    assert not any(x.is_deleted() for x in jax.tree.leaves(mine))


def test_one_buffer_at_two_paths_is_found_before_the_call() -> None:
    def step_fn(state, x):
        return jax.tree.map(lambda p: p + x.mean(), state), x.sum()

    step = jzero.shard_train_step(step_fn, config=SHARD_ALL)
    placed = step.shard({"a": jnp.ones((16,)), "b": jnp.ones((16,))})
    tied = {"a": placed["a"], "b": placed["a"]}
    with pytest.raises(jzero.AliasError) as error:
        step(tied, batch())
    assert "state['b']" in str(error.value)
    assert "state['a']" in str(error.value)
    assert not placed["a"].is_deleted()
    new, _ = step(step.shard(tied), batch())  # shard copies
    np.testing.assert_array_equal(new["a"], new["b"])


def test_state_from_another_mesh() -> None:
    step = make_step()
    few = Mesh(np.array(jax.devices()[:4]), ("data",))
    state = jax.device_put(make_state(), NamedSharding(few, P()))
    with pytest.raises(jzero.PlacementError) as error:
        step(*state, batch())
    for part in ("params['w']", "4 devices", "8 devices", "step.shard"):
        assert part in str(error.value)
    check_usable(step, step.shard(state))


def test_a_leaf_replaced_by_a_python_number_does_not_recompile() -> None:
    def step_fn(state, x):
        return {"w": state["w"] - state["lr"] * x.mean(), "lr": state["lr"]}, x.sum()

    step = jzero.shard_train_step(step_fn, config=SHARD_ALL)
    state, _ = step({"w": jnp.ones((16,)), "lr": 0.1}, batch())
    for rate in (0.2, 0.3):
        state["lr"] = rate
        state, _ = step(state, batch())
    (program,) = step._programs.values()
    assert state["lr"].dtype == jnp.float32
    assert program.state_structs[0].weak_type is False


def test_gather_returns_whole_arrays() -> None:
    step = make_step()
    state = step.shard(make_state())
    assert not state[0]["w"].is_fully_replicated
    whole = step.gather(state)
    np.testing.assert_array_equal(whole[0]["w"], np.ones((24, 16)))
    assert isinstance(whole[0]["w"], np.ndarray)


def test_init_gives_the_same_numbers_as_one_device() -> None:
    def create(key):
        params = {"w": jax.random.normal(key, (24, 16)), "b": jnp.zeros((16,))}
        return params, TX.init(params)

    step = make_step()
    state = step.init(create, jax.random.key(3))
    wanted = create(jax.random.key(3))
    np.testing.assert_allclose(state[0]["w"], wanted[0]["w"], rtol=1e-6)
    assert state[0]["w"].sharding.spec == P("data")
    assert state[1][0].mu["w"].sharding.spec == P("data")
    check_usable(step, state)


def test_plan_and_lower_work_on_shapes_alone() -> None:
    step = make_step()
    shapes = jax.eval_shape(make_state)
    x = jax.ShapeDtypeStruct((16, 24), jnp.float32)
    plan = step.plan(*shapes, x)
    assert "params['w']" in str(plan)
    assert plan.local_bytes < plan.global_bytes / 4
    assert "sharding" in step.lower(*shapes, x).as_text()


def test_an_error_of_the_step_itself_comes_through() -> None:
    def step_fn(state, x):
        raise KeyError("mine")

    step = jzero.shard_train_step(step_fn)
    with pytest.raises(KeyError, match="mine"):
        step(jnp.ones((8,)), batch())
