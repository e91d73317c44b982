"""The state is taken over in place: no warning, no second copy, a clear refusal."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jzero
from tests.end_to_end.oracle import SHARD_ALL

OPTIMIZERS = {
    "adam": optax.adam(1e-2),
    "schedule_free_adamw": optax.contrib.schedule_free_adamw(1e-2),
    "multi_steps": optax.MultiSteps(optax.adam(1e-2), 2),
}


def make_step(tx: Any) -> Any:
    def step(state: Any, x: jax.Array) -> Any:
        def loss(p: Any) -> jax.Array:
            return ((x @ p["w"] + p["b"][None]) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(state["params"])
        updates, opt = tx.update(grads, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        ema = jax.tree.map(lambda e, p: 0.9 * e + 0.1 * p, state["ema"], params)
        return {"params": params, "opt": opt, "ema": ema}, {"loss": value}

    return step


def make_state(tx: Any) -> Any:
    """Its EMA *is* its parameters, as users start one."""
    params = {"w": jnp.ones((16, 8)), "b": jnp.zeros(8)}
    return {"params": params, "opt": tx.init(params), "ema": params}


ROWS = np.ones((16, 16), np.float32)


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_old_leaves_go_and_the_users_own_stay(name: str, stage: int) -> None:
    """A warning about unusable donated buffers would fail the test."""
    tx = OPTIMIZERS[name]
    mine = make_state(tx)
    step = jzero.shard_train_step(make_step(tx), stage=stage, config=SHARD_ALL)
    state, _ = step(mine, ROWS)
    assert not any(x.is_deleted() for x in jax.tree.leaves(mine))
    for _ in range(2):
        old, (state, _) = state, step(state, ROWS)
        assert all(x.is_deleted() for x in jax.tree.leaves(old))
    with pytest.raises(jzero.DonationError) as error:
        step(old, ROWS)
    for path, leaf in jax.tree_util.tree_flatten_with_path(old)[0]:
        row = f"state{jax.tree_util.keystr(path)} "
        assert row in str(error.value)
        assert f"{leaf.dtype}{list(leaf.shape)}" in str(error.value)
    assert "Remedy" in str(error.value)
    step(state, ROWS)


@pytest.mark.parametrize("stage", range(4))
def test_every_state_byte_is_aliased_and_nothing_is_copied_first(stage: int) -> None:
    tx = OPTIMIZERS["adam"]
    step = jzero.shard_train_step(make_step(tx), stage=stage, config=SHARD_ALL)
    state = step.shard(make_state(tx))
    compiled = step.lower(state, ROWS).compile()
    memory = compiled.memory_analysis()
    held = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state))
    assert memory.alias_size_in_bytes == held
    header = compiled.as_text().splitlines()[0]
    aliases = re.findall(r"\{(\d+)\}: \((\d+), \{\}", header)
    assert [int(out) for out, _ in aliases] == list(range(len(aliases)))
    assert len(aliases) == len(jax.tree.leaves(state))
