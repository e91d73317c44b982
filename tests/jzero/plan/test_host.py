"""Which leaves rest in host memory."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jzero import Offload, ZeroConfig
from jzero.plan.host import HOST, choose_host, natural_order
from jzero.plan.leaves import describe_tree
from jzero.plan.plan import plan_state
from jzero.plan.roles import assign_roles

ROWS = 64


def weights(num_layers: int = 4, rows: int = ROWS) -> dict[str, Any]:
    matrix = jax.ShapeDtypeStruct((rows, 8), np.float32)
    return {f"layer_{i}": matrix for i in range(num_layers)}


def facts_of(state: Any) -> tuple[Any, Any]:
    leaves = describe_tree(state, arg=0, name="state")
    return leaves, assign_roles(leaves, arg_names=["state"])


def state_of(num_layers: int = 4) -> dict[str, Any]:
    return {
        "params": weights(num_layers),
        "opt_state": {"mu": weights(num_layers), "nu": weights(num_layers)},
        "step": jax.ShapeDtypeStruct((), np.int32),
    }


def chosen(state: Any, **settings: Any) -> set[str]:
    leaves, roles = facts_of(state)
    threshold = settings.pop("persistence_threshold", 0)
    config = ZeroConfig(persistence_threshold=threshold, offload=Offload(**settings))
    resting = choose_host(leaves, roles, config)
    return {
        leaf.path
        for leaf, r in zip(leaves, resting, strict=True)
        if r.memory_kind == HOST
    }


def test_roles_that_are_named_go_and_others_stay() -> None:
    state = state_of(1)
    moments = {f"state['opt_state']['{m}']['layer_0']" for m in ("mu", "nu")}
    weight = {"state['params']['layer_0']"}
    assert chosen(state, optimizer="host") == moments
    assert chosen(state, params="host") == weight
    assert chosen(state, optimizer="host", params="host") == moments | weight


def test_small_leaves_stay() -> None:
    assert chosen(state_of(), optimizer="host", persistence_threshold=8 * ROWS)
    above = 8 * ROWS + 1
    assert not chosen(state_of(), optimizer="host", persistence_threshold=above)


def test_a_share_takes_whole_parameters_from_the_last_layer_on() -> None:
    paths = chosen(state_of(12), optimizer="host", ratio=0.25)
    assert {p.split("['")[-1][:-2] for p in paths} == {
        "layer_9",
        "layer_10",
        "layer_11",
    }
    assert len(paths) == 6  # both moments of each


def test_a_share_is_met_as_nearly_as_whole_parameters_can() -> None:
    for share, count in ((0.1, 0), (0.3, 1), (0.5, 2), (0.9, 4)):
        paths = chosen(state_of(4), optimizer="host", ratio=share)
        assert len(paths) == 2 * count, share


def test_the_plan_says_where_and_why() -> None:
    leaves, roles = facts_of(state_of(2))
    config = ZeroConfig(
        persistence_threshold=0, offload=Offload(optimizer="host", ratio=0.5)
    )
    plans = plan_state(leaves, roles, stage=3, config=config, axis_sizes={"data": 8})
    by_path = {p.path: p for p in plans}
    gone = by_path["state['opt_state']['mu']['layer_1']"]
    kept = by_path["state['opt_state']['mu']['layer_0']"]
    assert gone.is_on_host
    assert gone.local_bytes == ROWS * 8 * 4 // 8
    assert "offloaded" in gone.reason
    assert not kept.is_on_host
    assert "ratio 0.5" in kept.reason
    assert by_path["state['params']['layer_1']"].memory_kind == "device"


def test_numbers_in_paths_count_as_numbers() -> None:
    names = ["b_10", "b_9", "a_100", "b"]
    assert sorted(names, key=natural_order) == ["a_100", "b", "b_9", "b_10"]
