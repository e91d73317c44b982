"""The collector stands still inside and is afterwards as it was."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jzero
from jzero.runtime.collector import collector_paused


@pytest.mark.parametrize("is_enabled", (True, False))
def test_the_collector_is_left_as_it_was(is_enabled: bool) -> None:
    try:
        (gc.enable if is_enabled else gc.disable)()
        with collector_paused():
            assert not gc.isenabled()
        assert gc.isenabled() == is_enabled
        with pytest.raises(ValueError), collector_paused():
            raise ValueError
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()


def test_users_code_is_traced_without_it() -> None:
    seen = []

    def train_step(w: Any, x: jax.Array) -> Any:
        seen.append(gc.isenabled())
        return w - x.mean(), x.sum()

    step = jzero.shard_train_step(train_step)
    w = step.init(lambda: jnp.zeros(4))
    step(w, jnp.ones((8, 2)))
    assert seen and not any(seen)
    assert gc.isenabled()
