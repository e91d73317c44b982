"""The loss scale: when it falls, grows, and gives up."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jzero.errors import LossScaleError
from jzero.precision import DynamicLossScale, all_finite

YES, NO = jnp.asarray(True), jnp.asarray(False)


def test_it_falls_at_once_and_grows_after_a_while() -> None:
    scaler = DynamicLossScale(8.0, growth_interval=2)
    assert float(scaler.adjust(NO).scale) == 4.0
    once = scaler.adjust(YES)
    assert (float(once.scale), int(once.num_good_steps)) == (8.0, 1)
    assert float(once.adjust(NO).adjust(YES).scale) == 4.0, "the count starts again"
    twice = once.adjust(YES)
    assert (float(twice.scale), int(twice.num_good_steps)) == (16.0, 0)


def test_it_gives_up_at_the_smallest_scale() -> None:
    scaler = DynamicLossScale(2.0, min_scale=1.0).adjust(NO)
    scaler.check()
    stuck = scaler.adjust(NO)
    assert float(stuck.scale) == 1.0
    with pytest.raises(LossScaleError, match="smallest loss scale, 1"):
        stuck.check()
    stuck.adjust(YES).check()


def test_it_never_becomes_infinite() -> None:
    scaler = DynamicLossScale(2.0**127, growth_interval=1).adjust(YES)
    assert float(scaler.scale) == 2.0**127


def test_loss_and_gradients() -> None:
    scaler = DynamicLossScale(8.0)
    loss = scaler.scale_loss(jnp.float16(3.0))
    assert (loss.dtype, float(loss)) == (jnp.float16, 24.0)
    grads = scaler.unscale({"w": jnp.float16([16.0])})
    assert grads["w"].dtype == jnp.float32
    np.testing.assert_array_equal(grads["w"], [2.0])


def test_it_is_a_small_tree_of_plain_arrays() -> None:
    scaler = DynamicLossScale(4.0, factor=4.0)
    leaves, treedef = jax.tree.flatten(scaler)
    assert [leaf.dtype for leaf in leaves] == [jnp.float32, jnp.int32, jnp.bool_]
    again = jax.tree.unflatten(treedef, leaves)
    assert float(jax.jit(lambda s: s.adjust(NO))(again).scale) == 1.0
    paths = [
        jax.tree_util.keystr(k)
        for k, _ in jax.tree_util.tree_flatten_with_path(scaler)[0]
    ]
    assert paths == [".scale", ".num_good_steps", ".is_stuck"]


@pytest.mark.parametrize("bad", (jnp.nan, jnp.inf, -jnp.inf))
def test_one_bad_number_is_enough(bad: float) -> None:
    good = {"w": jnp.ones(3), "n": jnp.arange(3)}
    assert bool(all_finite(good))
    assert bool(all_finite({}))
    assert not bool(all_finite(good | {"v": jnp.array([1.0, bad], jnp.float16)}))


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in ({"scale": 0.5}, {"factor": 1.0}, {"growth_interval": 0}):
        with pytest.raises(ValueError, match="Remedy"):
            DynamicLossScale(**wrong)
