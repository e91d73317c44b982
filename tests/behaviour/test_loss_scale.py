"""Dynamic loss scaling: every shard skips the same steps, and only those."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.behaviour.training import assert_same_on_every_device, train

TRUE_GRADIENT = 4.0
FIRST_SCALE = 2.0**15

TX = optax.chain(
    optax.clip_by_global_norm(100.0),  # no-op once unscaled, drastic before
    optax.trace(0.9),
    optax.scale_by_schedule(lambda count: -0.1),
)


def scaled_loss(w: jax.Array, rows: jax.Array, scale: jax.Array) -> jax.Array:
    """Computes in float16; its gradient is the mean row times the scale."""
    half = w.astype(jnp.float16) * scale.astype(jnp.float16)
    return half.sum() * rows.astype(jnp.float16).mean()


def make_step(*, has_cond: bool) -> Any:
    def step(state: Any, rows: jax.Array) -> Any:
        scale = state["scale"]
        grads = jax.grad(scaled_loss)(state["w"], rows, scale)
        grads = grads.astype(jnp.float32) / scale
        is_finite = jnp.isfinite(grads).all()

        def update(w: jax.Array, opt: Any) -> Any:
            updates, opt = TX.update(grads, opt, w)
            return optax.apply_updates(w, updates), opt

        old = state["w"], state["opt"]
        if has_cond:
            w, opt = jax.lax.cond(is_finite, update, lambda *same: same, *old)
        else:
            new = update(*old)
            w, opt = jax.tree.map(lambda a, b: jnp.where(is_finite, a, b), new, old)
        scale = jnp.where(is_finite, scale, scale / 2)
        metrics = {"is_finite": is_finite, "scale": scale}
        return {"w": w, "opt": opt, "scale": scale}, metrics

    return step


def make_state() -> Any:
    w = jnp.ones(8)
    return {"w": w, "opt": TX.init(w), "scale": jnp.asarray(FIRST_SCALE)}


def rows() -> np.ndarray:
    return np.full(16, TRUE_GRADIENT, np.float32)


@pytest.mark.parametrize("has_cond", (False, True))
@pytest.mark.parametrize("stage", range(4))
def test_two_overflows_then_the_step(stage: int, has_cond: bool) -> None:
    step = make_step(has_cond=has_cond)
    for num_steps in (2, 3):
        state, seen = train(step, make_state(), [(rows(),)] * num_steps, stage=stage)
        finite = [bool(m["is_finite"]) for m in seen]
        assert finite == [False, False, True][:num_steps]
        assert_same_on_every_device(seen)
        assert float(state["scale"]) == 8192.0
        if num_steps == 2:  # a skipped step leaves no trace
            wanted = make_state()
            for got, want in zip(
                jax.tree.leaves((state["w"], state["opt"])),
                jax.tree.leaves((wanted["w"], wanted["opt"])),
                strict=True,
            ):
                np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(state["w"], np.full(8, 0.6), rtol=1e-6)
            assert int(state["opt"][2].count) == 1


@pytest.mark.parametrize("has_cond", (False, True))
@pytest.mark.parametrize("stage", (1, 2, 3))
def test_overflow_in_the_rows_of_one_device(stage: int, has_cond: bool) -> None:
    bad = rows()
    bad[5] = np.inf
    start = make_state() | {"scale": jnp.asarray(8192.0)}
    step = make_step(has_cond=has_cond)
    state, seen = train(step, start, [(bad,)], stage=stage)
    assert not bool(seen[0]["is_finite"])
    assert_same_on_every_device(seen)
    assert float(state["scale"]) == 4096.0
    np.testing.assert_array_equal(state["w"], np.ones(8))
    np.testing.assert_array_equal(state["opt"][1].trace, np.zeros(8))
    assert int(state["opt"][2].count) == 0
