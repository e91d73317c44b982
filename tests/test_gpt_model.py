from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import pytest

from tests.gpt_model import batch_shapes, build_gpt, count_params

KEY = jax.random.key(0)
IDS = jax.random.randint(jax.random.key(1), (8, 16), 0, 64)
BATCH = {"x": IDS[:, :-1], "y": IDS[:, 1:]}
SMALL = {"vocab": 64, "width": 32, "num_layers": 2, "num_heads": 2}


@pytest.mark.parametrize("is_scanned", [False, True])
def test_one_step_lowers_the_loss(is_scanned: bool) -> None:
    gpt = build_gpt(**SMALL, is_scanned=is_scanned, learning_rate=1e-2)
    state = jax.jit(gpt.create)(KEY, BATCH["x"])
    chex.assert_trees_all_equal_shapes_and_dtypes(
        state.params, gpt.state_shapes().params
    )
    step = jax.jit(gpt.step)
    losses = []
    for _ in range(3):
        state, metrics = step(state, BATCH)
        losses.append(float(metrics["loss"]))
    assert losses[2] < losses[1] < losses[0] < 5.0


def test_micro_batches_add_up_to_the_batch() -> None:
    whole = build_gpt(**SMALL, dtype=jnp.float32)
    parts = build_gpt(**SMALL, dtype=jnp.float32, num_micro_batches=4)
    state = jax.jit(whole.create)(KEY, BATCH["x"])
    expected = jax.jit(whole.step)(state, BATCH)
    found = jax.jit(parts.step)(state, BATCH)
    chex.assert_trees_all_close(found[1], expected[1], rtol=1e-5)
    # Adam turns rounding of a tiny gradient into a whole step: compare its input.
    chex.assert_trees_all_close(
        found[0].opt_state[1][0].mu, expected[0].opt_state[1][0].mu, atol=1e-5
    )


@pytest.mark.parametrize("is_scanned", [False, True])
def test_size_of_the_figures_model(is_scanned: bool) -> None:
    gpt = build_gpt(width=1024, num_layers=4, is_scanned=is_scanned)
    # Per layer 4 projections and 2 dense kernels with biases, and 2 norms.
    layer = 4 * (1024 * 1024 + 1024) + 8 * 1024 * 1024 + 5 * 1024 + 4 * 1024
    assert count_params(gpt.state_shapes()) == 2 * 32_000 * 1024 + 4 * layer + 2 * 1024
    assert batch_shapes(16, 1024)["y"].shape == (16, 1024)
