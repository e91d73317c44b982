"""The plan of a state needs no batch and no trace."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import jzero
from jzero.runtime.mesh import default_mesh
from jzero.runtime.settings import Known, Settings, plan_for_state


def settings(stage: int = 3) -> Settings:
    config = jzero.ZeroConfig(persistence_threshold=0)
    return Settings(stage=stage, mesh=default_mesh("data"), config=config)


def test_a_stacked_dim_is_never_sharded() -> None:
    state = {"params": {"w": jax.ShapeDtypeStruct((64, 16), jnp.float32)}}
    for is_stacked, spec in ((False, P("data")), (True, P(None, "data"))):
        known = [Known(shape=(64, 16), is_stacked=is_stacked)]
        plan = plan_for_state([("state", state)], known, settings())
        assert plan.state[0].spec == spec


def test_facts_go_with_their_argument() -> None:
    tree = {"w": jax.ShapeDtypeStruct((16, 8), jnp.float32)}
    known = [Known(shape=(16, 8)), Known(shape=(16, 8), is_stacked=True)]
    plan = plan_for_state([("params", tree), ("other", tree)], known, settings())
    assert [p.arg for p in plan.state] == [0, 1]
    assert plan.state[0].role == "parameter"
    assert plan_for_state([("params", tree)], known[:1], settings(0)).local_bytes == 512
