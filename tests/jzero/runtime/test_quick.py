"""The quick path takes back exactly what the last call returned."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jzero
from jzero import ZeroConfig
from jzero.runtime.quick import Quick

SHARD_ALL = ZeroConfig(persistence_threshold=0)
NUM_LEAVES = 40


def add(state: Any, x: jax.Array) -> Any:
    return {k: v + x.sum() for k, v in state.items()}, x.sum()


def after_a_call() -> tuple[Any, Any, jax.Array, Quick]:
    step = jzero.shard_train_step(add, config=SHARD_ALL)
    x = step.shard_batch(jnp.ones((8, 2)))
    state = {f"w{i:02}": jnp.full((8,), float(i)) for i in range(NUM_LEAVES)}
    state, _ = step(step.shard(state), x)
    return step, state, x, step._quick


def test_the_returned_state_is_accepted_and_its_leaves_passed_on() -> None:
    _, state, x, quick = after_a_call()
    lists = quick.accept((state, x))
    assert lists is not None
    assert all(a is b for a, b in zip(lists[0], state.values(), strict=True))


def test_any_other_leaf_is_not_accepted() -> None:
    for name in ("w00", "w07", f"w{NUM_LEAVES - 1}"):
        _, state, x, quick = after_a_call()
        state[name] = jnp.copy(state[name])
        assert quick.accept((state, x)) is None
    _, state, x, quick = after_a_call()
    assert quick.accept((dict(list(state.items())), jnp.ones((16, 2)))) is None
    assert quick.accept((state,)) is None


def test_another_structure_raises_for_the_long_way() -> None:
    _, state, x, quick = after_a_call()
    state["more"] = state.pop("w03")
    with pytest.raises(ValueError):
        quick.accept((state, x))


def test_a_dropped_state_is_freed() -> None:
    step, state, x, quick = after_a_call()
    leaves = [weakref.ref(leaf) for leaf in state.values()]
    del state
    gc.collect()
    assert not any(ref() for ref in leaves)
    assert quick.state == []
    state = step.shard({f"w{i:02}": jnp.zeros(8) for i in range(NUM_LEAVES)})
    assert quick.accept((state, x)) is None
    assert float(step(state, x)[1]) == 16
