"""The quick path takes back exactly what the last call returned."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

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


def test_the_returned_state_is_accepted_and_its_buffers_taken() -> None:
    _, state, x, quick = after_a_call()
    for _ in range(2):
        old = state
        state, total = quick((state, x), {})
        assert float(total) == 16
        assert all(leaf.is_deleted() for leaf in old.values())
    assert float(state["w03"][0]) == 3 + 3 * 16


def test_any_other_leaf_is_not_accepted() -> None:
    for name in ("w00", "w07", f"w{NUM_LEAVES - 1}"):
        _, state, x, quick = after_a_call()
        state[name] = jnp.copy(state[name])
        assert quick((state, x), {}) is NotImplemented
    _, state, x, quick = after_a_call()
    # A Python number would promote other dtypes than an array does.
    assert quick((state, 1.0), {}) is NotImplemented
    assert not state["w00"].is_deleted()


def test_data_of_another_shape_is_refused_by_the_program() -> None:
    step, state, _, quick = after_a_call()
    with pytest.raises(TypeError):
        quick((state, step.shard_batch(jnp.ones((16, 2)))), {})
    assert not state["w00"].is_deleted()
    assert float(step(state, jnp.ones((16, 2)))[1]) == 32


def test_another_structure_raises_for_the_long_way() -> None:
    _, state, x, quick = after_a_call()
    assert quick((state,), {}) is NotImplemented
    state["more"] = state.pop("w03")
    with pytest.raises(ValueError):
        quick((state, x), {})


def test_a_dropped_state_is_freed() -> None:
    step, state, x, quick = after_a_call()
    leaves = [weakref.ref(leaf) for leaf in state.values()]
    del state
    gc.collect()
    assert not any(ref() for ref in leaves)
    state = step.shard({f"w{i:02}": jnp.zeros(8) for i in range(NUM_LEAVES)})
    assert quick((state, x), {}) is NotImplemented
    assert float(step(state, x)[1]) == 16


def scaled(state: Any, x: jax.Array, mode: str = "sum", scale: Any = None) -> Any:
    value = getattr(x, mode)() * (1 if scale is None else scale)
    return {k: v + value for k, v in state.items()}, value


SPELLINGS: dict[str, Callable[[Any, jax.Array], tuple[tuple[Any, ...], Any]]] = {
    "keywords": lambda state, x: ((), {"x": x, "state": state}),
    "static by position": lambda state, x: ((state, x, "mean"), {}),
    "static by keyword": lambda state, x: ((state, x), {"mode": "mean"}),
    "mixed": lambda s, x: ((s,), {"scale": np.float32(2), "x": x, "mode": "sum"}),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_a_call_has_a_quick_path(spelling: str) -> None:
    spell = SPELLINGS[spelling]
    step = jzero.shard_train_step(scaled, config=SHARD_ALL)
    state = step.shard({"w": jnp.zeros(8)})
    x = step.shard_batch(jnp.arange(16.0).reshape(8, 2))
    args, kwargs = spell(state, x)
    state, first = step(*args, **kwargs)
    quick = step._quick
    args, kwargs = spell(state, x)
    state, second = quick(args, kwargs)
    assert float(first) == float(second)
    assert float(state["w"][0]) == 2 * float(first)
    assert quick((state, x, "max"), {}) is NotImplemented
    assert quick((state, x), {"mode": "sum", "more": 1}) is NotImplemented


def test_data_that_lies_elsewhere_is_moved_every_time() -> None:
    step = jzero.shard_train_step(add, config=SHARD_ALL)
    whole = NamedSharding(step._settings.mesh, PartitionSpec())
    state = step.shard({"w": jnp.zeros(8)})
    for x in (np.ones((8, 2)), jax.device_put(jnp.ones((8, 2)), whole)):
        state, _ = step(state, x.astype(np.float32))
        quick = step._quick
        state, total = quick((state, x.astype(np.float32)), {})
        assert float(total) == 16
        if isinstance(x, jax.Array):
            state, total = step(state, step.shard_batch(x))
        assert step._quick is quick
