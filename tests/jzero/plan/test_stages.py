"""The table of stages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jzero.config import ZeroConfig
from jzero.errors import ConfigError, StageError
from jzero.plan.stages import check_stage, placement_for


def test_the_table() -> None:
    table = [placement_for(stage) for stage in range(4)]
    assert [p.params for p in table] == [False, True, True, True]
    assert [p.optimizer for p in table] == [False, True, True, True]
    assert [p.gather for p in table] == ["none", "once", "once", "at_use"]
    assert [p.reduce for p in table] == ["all_reduce", *["at_birth"] * 3]
    assert [p.window for p in table] == [False, False, True, True]
    assert [p.is_sharded for p in table] == [False, True, True, True]


@pytest.mark.parametrize(
    "stage", [4, -1, "3", True, False, 2.0, None, np.int64(1), "zero"], ids=repr
)
def test_unknown_stages_list_the_known_ones(stage: Any) -> None:
    with pytest.raises(StageError) as caught:
        placement_for(stage)
    text = str(caught.value)
    assert repr(stage) in text
    assert all(f"\n  {number}  " in text for number in range(4))
    assert "stage=3" in text


@pytest.mark.parametrize("stage", [1, 2])
def test_whole_parameters_need_no_gather(stage: int) -> None:
    placement = placement_for(stage, replicate_params=True)
    assert not placement.params and placement.optimizer
    assert placement.gather == "none"
    assert placement.reduce == placement_for(stage).reduce
    assert placement.window == placement_for(stage).window


def test_whole_parameters_contradict_stage_3() -> None:
    config = ZeroConfig(replicate_params=True)
    assert check_stage(config, 0) == placement_for(0)
    with pytest.raises(ConfigError, match=r"replicate_params=True contradicts stage 3"):
        check_stage(config, 3)
