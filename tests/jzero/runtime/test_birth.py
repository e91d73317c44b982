"""States are born in their places, with the numbers of one device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jzero
from jzero.runtime.birth import boxed_specs, plan_birth
from jzero.runtime.calls import StepFunction
from jzero.runtime.settings import Settings

TX = optax.adam(1e-3)


def step(params, opt_state, x):
    return params, opt_state, x.sum()


def settings(num_devices: int = 8) -> Settings:
    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("data",))
    config = jzero.ZeroConfig(persistence_threshold=0)
    return Settings(stage=3, mesh=mesh, config=config)


def create(key):
    def layer(carry, key):
        return carry, jax.random.normal(key, (24, 16))

    _, stacked = jax.lax.scan(layer, 0, jax.random.split(key, 32))
    params = {"stack": stacked, "w": jax.random.normal(key, (64, 5))}
    return params, TX.init(params)


@pytest.mark.parametrize("num_devices", (1, 2, 4, 8))
def test_numbers_do_not_depend_on_the_devices(num_devices: int) -> None:
    birth = plan_birth(
        create,
        (jax.random.key(7),),
        step_function=StepFunction(step),
        settings=settings(num_devices),
    )
    state, known = birth.make(), birth.view.known
    wanted = jax.jit(create)(jax.random.key(7))
    for got, want in zip(jax.tree.leaves(state), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got, want, rtol=3e-7)
    assert known[0].shape == (32, 24, 16) and known[0].is_stacked
    if num_devices == 8:
        assert state[0]["stack"].sharding.spec == P(None, "data")
        mu = state[1][0].mu["stack"]
        assert mu.addressable_shards[0].data.shape == (32, 3, 16)


def test_no_device_ever_holds_a_whole_leaf() -> None:
    def big(key):
        return {"params": {"w": jax.random.normal(key, (4096, 256))}}

    made = jzero.shard_train_step(step, config=settings().config).init(
        big, jax.random.key(0)
    )
    leaf = made["params"]["w"]
    assert {s.data.shape for s in leaf.addressable_shards} == {(512, 256)}


def test_counters_are_strongly_typed() -> None:
    state = plan_birth(
        lambda: {"params": {"w": jnp.ones((8,))}, "step": 0},
        (),
        step_function=StepFunction(step),
        settings=settings(),
    ).make()
    assert not state["step"].weak_type


def test_chosen_leaves_are_created_alone() -> None:
    birth = plan_birth(
        create,
        (jax.random.key(7),),
        step_function=StepFunction(step),
        settings=settings(),
    )
    everything = birth.create(None)
    chosen = birth.create([3, 1])
    for leaf, whole in zip(chosen, (everything[3], everything[1]), strict=True):
        assert leaf.sharding == whole.sharding
        np.testing.assert_array_equal(leaf, whole)


def test_metadata_boxes_carry_specs() -> None:
    box = nn.Partitioned(jnp.ones((4, 8)), names=(None, "model"))
    specs = boxed_specs({"a": box, "b": jnp.ones(3)})
    assert specs == [P(None, "model"), None]
