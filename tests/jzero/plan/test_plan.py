"""The plan of a state: bytes, specs and what is left whole."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec as P

from jzero.config import ZeroConfig
from jzero.errors import ConfigError, MeshError, StageError
from tests.jzero.plan.states import linen_state, plan_of

STAGES = range(4)


def _adam(params: Any) -> Any:
    return jax.eval_shape(optax.adam(1e-3).init, params)


def _specs(plan: Any) -> dict[str, P]:
    return {leaf.path: leaf.spec for leaf in plan.state}


def test_bytes_follow_the_formula() -> None:
    """12 bytes per f32 Adam parameter: whole at stage 0, an eighth after."""
    params = {"w": jnp.ones((64, 32)), "b": jnp.ones(64)}
    num_elems = 64 * 32 + 64
    for stage in STAGES:
        plan = plan_of(stage, params=params, opt_state=_adam(params))
        count_bytes = 4
        assert plan.global_bytes == 12 * num_elems + count_bytes
        num_shards = 8 if stage else 1
        assert plan.local_bytes == 12 * num_elems // num_shards + count_bytes
        totals = {total.role: total for total in plan.totals}
        assert list(totals) == ["parameter", "optimizer", "other"]
        assert totals["parameter"].local_bytes == 4 * num_elems // num_shards
        assert totals["optimizer"].global_bytes == 8 * num_elems
        assert [totals[role].num_leaves for role in totals] == [2, 4, 1]


def test_mirrors_take_the_spec_of_their_parameter() -> None:
    state = linen_state(optax.adam(1e-3))
    plan = plan_of(3, state=state)
    specs = _specs(plan)
    mirrors = [leaf for leaf in plan.state if leaf.owner_path]
    assert len(mirrors) == 12
    for leaf in mirrors:
        assert leaf.spec == specs[leaf.owner_path or ""]
        assert leaf.reason == "as its parameter"
    others = [leaf for leaf in plan.state if leaf.role == "other"]
    assert {leaf.path for leaf in others} >= {"state.step", "state.key"}
    assert all(leaf.spec == P() and not leaf.is_sharded for leaf in others)


def test_leaves_of_another_shape_are_planned_for_themselves() -> None:
    params = {"w": jnp.ones((256, 128)), "b": jnp.ones(5)}
    opt_state = jax.eval_shape(optax.adafactor(1e-3).init, params)
    specs = _specs(plan_of(3, params=params, opt_state=opt_state))
    assert specs["params['w']"] == P("data")
    factors = {
        path: spec
        for path, spec in specs.items()
        if path.endswith(("v_row['w']", "v_col['w']"))
    }
    assert len(factors) == 2
    assert set(factors.values()) == {P("data")}
    assert all(spec == P() for path, spec in specs.items() if path.endswith("['b']"))


def test_axes_of_the_user_are_kept_and_inherited() -> None:
    params = {"w": jnp.ones((64, 16))}
    sizes = {"data": 4, "model": 2}
    base = {"params['w']": P("model")}
    args = {"params": params, "opt_state": _adam(params)}
    for stage in STAGES:
        plan = plan_of(stage, axis_sizes=sizes, base_specs=base, **args)
        expected = P("model", "data") if stage else P("model")
        floats = [leaf for leaf in plan.state if leaf.role != "other"]
        assert len(floats) == 3
        for leaf in floats:
            assert (leaf.spec, leaf.base_spec) == (expected, P("model"))
            assert leaf.local_bytes == 64 * 16 * 4 // (8 if stage else 2)


def test_mirror_with_axes_of_its_own() -> None:
    params = {"w": jnp.ones((64, 16))}
    sizes = {"data": 4, "model": 2}
    args = {"params": params, "opt_state": _adam(params)}
    own = {"params['w']": P("model"), "opt_state[0].mu['w']": P(None, "model")}
    specs = _specs(plan_of(3, axis_sizes=sizes, base_specs=own, **args))
    assert specs["opt_state[0].mu['w']"] == P("data", "model")
    assert specs["opt_state[0].nu['w']"] == P("model", "data")
    # The same axes in another spelling are no axes of its own.
    same = {"params['w']": P("model"), "opt_state[0].mu['w']": P("model", None)}
    plan = plan_of(0, axis_sizes=sizes, base_specs=same, **args)
    assert not any(leaf.is_sharded for leaf in plan.state)


def test_whole_parameters_with_sharded_mirrors() -> None:
    params = {"w": jnp.ones((64, 16))}
    config = ZeroConfig(persistence_threshold=0, replicate_params=True)
    args = {"params": params, "opt_state": _adam(params)}
    for stage in (1, 2):
        plan = plan_of(stage, config=config, **args)
        specs = _specs(plan)
        assert specs["params['w']"] == P()
        assert specs["opt_state[0].mu['w']"] == P("data")
        assert plan.replicated_large == ()
    with pytest.raises(ConfigError, match="replicate_params"):
        plan_of(3, config=config, **args)


def test_what_stays_whole_is_listed() -> None:
    params = {"odd": jnp.ones((7, 3)), "even": jnp.ones((8, 3)), "s": jnp.ones(())}
    plan = plan_of(3, params=params)
    (listed,) = plan.replicated_large
    assert listed.path == "params['odd']"
    assert listed.local_bytes == listed.global_bytes == 84
    assert "no dim of (7, 3) divides by data=8" in listed.reason
    assert plan_of(0, params=params).replicated_large == ()
    assert plan_of(3, params=params, axis_sizes={"data": 1}).replicated_large == ()
    small = ZeroConfig(persistence_threshold=22)
    assert plan_of(3, params=params, config=small).replicated_large == ()
    # Nothing but parameters and optimizer state is sharded: a large table shows.
    table = {"params": params, "extra": {"table": jnp.ones((80, 80), jnp.int32)}}
    paths = [leaf.path for leaf in plan_of(3, state=table).replicated_large]
    assert "state['extra']['table']" in paths


def test_odd_leaves() -> None:
    state = {
        "params": {"w": jnp.ones((16, 4)), "s": jnp.ones(()), "one": jnp.ones(1)},
        "empty": jnp.ones((0,)),
        "table": jnp.ones((16,), jnp.int32),
        "flag": True,
        "key": jax.random.key(0),
    }
    plan = plan_of(3, state=state)
    sharded = [leaf.path for leaf in plan.state if leaf.is_sharded]
    assert sharded == ["state['params']['w']"]
    assert plan.is_sharded([leaf.path for leaf in plan.state].index(sharded[0]))


def test_mistakes() -> None:
    params = {"w": jnp.ones((16, 4))}
    with pytest.raises(MeshError, match=r"lacks 'data'(.|\n)*'x'  size 8"):
        plan_of(3, params=params, axis_sizes={"x": 8})
    config = ZeroConfig(batch_axis="rows")
    with pytest.raises(MeshError, match="batch_axis"):
        plan_of(3, params=params, config=config)
    with pytest.raises(StageError):
        plan_of(4, params=params)
    base = {"params['w']": P("gone")}
    with pytest.raises(MeshError, match=r"params\['w'\]"):
        plan_of(3, params=params, base_specs=base)


def test_equal_plans_are_equal_and_hash_equal() -> None:
    params = {"w": jnp.ones((16, 4)), "k": jax.random.key(0)}
    one, two = (plan_of(3, params=params) for _ in range(2))
    assert one == two and hash(one) == hash(two)
    assert one != plan_of(2, params=params)
