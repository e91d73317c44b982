"""From a call to its program: what the plan of a call says."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jzero

SHARD_ALL = jzero.ZeroConfig(persistence_threshold=0)


def step_fn(params, opt, x, scale, key, mode="train"):
    noise = jax.random.normal(key, x.shape)
    grads = jax.tree.map(lambda p: p * 0 + (x + noise).mean() * scale, params)
    return jax.tree.map(lambda p, g: p - g, params, grads), opt, x.sum()


def arguments():
    params = {"w": jnp.ones((16, 8)), "odd": jnp.ones((3,))}
    x = np.ones((32, 4), np.float32)
    return params, {"count": 0}, x, 0.5, jax.random.key(0)


def test_the_plan_says_what_every_argument_is() -> None:
    step = jzero.shard_train_step(step_fn, config=SHARD_ALL)
    plan = step.plan(*arguments(), mode="eval")
    assert [p.path for p in plan.state] == [
        "params['odd']",
        "params['w']",
        "opt['count']",
    ]
    assert [(p.path, p.spec) for p in plan.batch] == [
        ("x", P("data")),
        ("scale", P()),
        ("key", P()),
    ]
    notes = " ".join(plan.notes)
    assert "state: params, opt" in notes and "mode='eval'" in notes


def test_a_counter_is_traced_with_a_strong_type() -> None:
    step = jzero.shard_train_step(step_fn, config=SHARD_ALL)
    program = step._program_for(arguments(), {})[0]
    assert not any(s.weak_type for s in program.state_structs)


def test_argnums_that_are_not_there() -> None:
    step = jzero.shard_train_step(step_fn, state_argnums=(0, 9))
    with pytest.raises(jzero.ConfigError, match=r"state_argnums(.|\n)*9"):
        step.plan(*arguments())


def test_what_init_saw_holds_for_the_call() -> None:
    def create(key):
        stacked = jax.lax.scan(
            lambda c, k: (c, jax.random.normal(k, (8,))), 0, jax.random.split(key, 64)
        )[1]
        return {"w": stacked}

    def train(params, x):
        return {"w": params["w"] - x.mean()}, x.sum()  # does not scan

    step = jzero.shard_train_step(train, config=SHARD_ALL)
    params = step.init(create, jax.random.key(0))
    assert params["w"].sharding.spec == P(None, "data")
    new, _ = step(params, np.ones((8, 4), np.float32))
    assert new["w"].sharding.spec == P(None, "data")
