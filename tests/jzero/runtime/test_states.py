"""A state taken apart knows where each leaf belongs, and how to come back together."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import jzero
from jzero.runtime.calls import StepFunction
from jzero.runtime.states import name_states

SHARD_ALL = jzero.ZeroConfig(persistence_threshold=0)


def step(params, opt_state, x):
    return params, opt_state, x.sum()


def make() -> jzero.TrainStep:
    return jzero.shard_train_step(step, config=SHARD_ALL)


def test_names_come_from_the_step() -> None:
    function = StepFunction(step)
    assert [n for n, _ in name_states((1, 2), function, None)] == [
        "params",
        "opt_state",
    ]
    assert [n for n, _ in name_states([1, 2], function, None)] == ["params"]
    assert [n for n, _ in name_states((1, 2), function, (1,))] == ["opt_state"]


def test_a_tree_comes_back_as_it_was() -> None:
    state = {"w": jnp.ones((16, 4)), "n": 3}
    view = make().view(state)
    assert [facts.keys for facts in view.facts] == [("n",), ("w",)]
    assert [s.spec for s in view.shardings] == [P(), P("data")]
    assert view.assemble(view.leaves) == state
    assert [path for path, _ in view.rows] == ["params['n']", "params['w']"]


def test_keys_of_several_arguments_begin_with_their_names() -> None:
    w = jnp.ones((16, 4))
    view = make().view(({"w": w}, {"mu": {"w": w}}))
    assert [f.keys for f in view.facts] == [
        ("params", "w"),
        ("opt_state", "mu", "w"),
    ]


def test_nnx_objects_are_filled_in_place() -> None:
    model = nnx.Linear(16, 8, rngs=nnx.Rngs(0))
    view = make().view((model, nnx.Dropout(0.1, rngs=nnx.Rngs(1))))
    back = view.assemble([jax.tree.map(jnp.zeros_like, x) for x in view.leaves])
    assert back[0] is model
    np.testing.assert_array_equal(np.asarray(model.kernel[...]), np.zeros((16, 8)))


def test_a_donated_leaf_is_refused() -> None:
    w = jnp.ones((16, 4))
    w.delete()
    with pytest.raises(jzero.DonationError, match=r"\['w'\]"):
        make().view({"w": w})
