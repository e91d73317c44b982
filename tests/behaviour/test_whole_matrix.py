"""Optimizers that look at a matrix as a whole, whose parts lie on many devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.behaviour.training import assert_like_one_device

SHAPES: dict[str, tuple[int, ...]] = {
    "square": (16, 16),
    "large": (256, 128),
    "small": (64, 32),
    "vector": (5,),
    "scalar": (),
}
OPTIMIZERS = {
    "muon": optax.contrib.muon(0.1),
    "adafactor": optax.adafactor(0.1),
    "lamb": optax.lamb(0.1),
    "lars": optax.lars(0.1),
}


def params() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    return {k: jnp.asarray(rng.normal(size=s)) for k, s in SHAPES.items()}


def make(name: str) -> tuple[Any, Any]:
    tx = OPTIMIZERS[name]

    def step(state: Any, x: jax.Array) -> Any:
        def loss(p: Any) -> jax.Array:
            total = (p["vector"] ** 2).sum() * p["scalar"]
            for name, left in (("square", 16), ("large", 256), ("small", 64)):
                total = total + (jnp.tanh(x[:, :left] @ p[name]) ** 2).mean()
            return total

        value, grads = jax.value_and_grad(loss)(state["params"])
        updates, opt = tx.update(grads, state["opt"], state["params"])
        new = optax.apply_updates(state["params"], updates)
        return {"params": new, "opt": opt}, {"loss": value}

    return step, {"params": params(), "opt": tx.init(params())}


@pytest.mark.parametrize("stage", (1, 2, 3))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_one_device(name: str, stage: int) -> None:
    with jax.enable_x64(True):
        step, start = make(name)
        batches = [(np.random.default_rng(i).normal(size=(8, 256)),) for i in range(3)]
        # Adafactor takes a power in float32, which XLA:CPU rounds by whether it
        # works on one number or on many: plain data parallelism is 5e-7 off too.
        rtol = 1e-6 if name == "adafactor" else 1e-9
        state, _ = assert_like_one_device(step, start, batches, stage=stage, rtol=rtol)
    if name == "adafactor":
        factored = state["opt"][0]
        assert factored.v_row["large"].shape == (128,)
        assert factored.v_col["large"].shape == (256,)
        for leaf in jax.tree.leaves(state):
            assert len(leaf.sharding.spec) <= leaf.ndim
