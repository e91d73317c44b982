"""Scales of 8-bit codes lie as their codes do, and nothing else does."""

from __future__ import annotations

import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jzero.config import ZeroConfig
from jzero.plan.blocks import divides_blocks, find_codes_of_scales
from jzero.plan.leaves import LeafFacts
from jzero.plan.plan import LeafPlan, plan_state
from jzero.plan.roles import assign_roles

P = PartitionSpec


def leaf(*keys: str, shape: tuple[int, ...], dtype: str = "f4") -> LeafFacts:
    attrs = tuple(i < len(keys) - 1 for i in range(len(keys)))
    path = "state." + ".".join(keys)
    return LeafFacts(
        path=path, keys=keys, arg=0, shape=shape, dtype=np.dtype(dtype), attrs=attrs
    )


def state_of(
    shape: tuple[int, ...], scales: tuple[int, ...], codes: str = "i1"
) -> list[LeafFacts]:
    return [
        leaf("params", "w", shape=shape),
        leaf("opt_state", "mu", "w", shape=shape, dtype=codes),
        leaf("opt_state", "mu_scales", "w", shape=scales),
    ]


def planned(leaves: list[LeafFacts], stage: int = 2) -> tuple[LeafPlan, ...]:
    roles = assign_roles(leaves, arg_names=["state"])
    config = ZeroConfig(persistence_threshold=16)
    sizes = {"data": 8}
    return plan_state(leaves, roles, stage=stage, config=config, axis_sizes=sizes)


@pytest.mark.parametrize("stage", (1, 2, 3))
def test_scales_follow_their_codes_however_few(stage: int) -> None:
    plans = planned(state_of((64, 256), (64, 1)), stage)
    assert [p.spec for p in plans] == [P("data")] * 3
    assert [p.role for p in plans] == ["parameter", "optimizer", "optimizer"]
    assert plans[2].reason == "blocks of its codes"
    whole = planned(state_of((64, 256), (8, 1)), 0)
    assert [p.spec for p in whole] == [P()] * 3


def test_blocks_across_shards_are_said() -> None:
    plans = planned(state_of((72, 256), (36, 1)))
    assert plans[1].spec == P("data")
    assert plans[2].spec == P()
    assert plans[2].reason == "blocks lie across shards"
    assert not divides_blocks(P("data"), (12, 1), {"data": 8})


def test_a_parameter_is_cut_where_its_blocks_end() -> None:
    """Dim 1 is the long one, but has four blocks of 256 for eight devices."""
    shape, blocks = (32, 1024), (32, 4)
    assert planned([leaf("params", "w", shape=shape)])[0].spec == P(None, "data")
    plans = planned(state_of(shape, blocks))
    assert [p.spec for p in plans] == [P("data")] * 3
    assert "counted in blocks" in plans[0].reason


@pytest.mark.parametrize(
    ("leaves", "why"),
    [
        (state_of((64, 256), (64, 1), codes="f4"), "codes are 8-bit integers"),
        (state_of((64, 256), (64,)), "scales have the rank of the codes"),
        (state_of((64, 256), (3, 1)), "and divide each dim"),
        (state_of((64, 256), (64, 1))[::2], "and have codes"),
    ],
)
def test_what_only_looks_like_scales_is_left_alone(
    leaves: list[LeafFacts], why: str
) -> None:
    assert find_codes_of_scales(leaves) == {}, why
