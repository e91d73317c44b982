"""Which leaves go into a file, under which names and dtypes; nothing is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jzero.checkpoint.export import Export, plan_export
from jzero.checkpoint.leaves import StoredLeaves, open_leaves
from jzero.checkpoint.source import find_source
from jzero.errors import CheckpointError, ConfigError


@pytest.fixture(scope="module")
def stored(run: Path) -> StoredLeaves:
    return open_leaves(find_source(run))


def plan(stored: StoredLeaves, **settings: Any) -> Export:
    usual: dict[str, Any] = {"what": "all", "only": (), "dtype": "same"}
    return plan_export(stored, **{"separator": "/", **usual, **settings})


def test_names_by_dots(stored: StoredLeaves) -> None:
    names = {entry.tensor.name for entry in plan(stored, separator=".").entries}
    assert {"params.rows", "params.a.b.c/d", "rng"} <= names


def test_patterns_choose_among_roles(stored: StoredLeaves) -> None:
    def chosen(*only: str, what: str = "all") -> set[str]:
        found = plan(stored, only=only, what=what)
        return {entry.leaf.path for entry in found.entries}

    assert chosen("*/rows") == {"params/rows", "opt/mu/rows"}
    assert chosen("*/rows", "table") == {"params/rows", "opt/mu/rows", "table"}
    assert chosen("*/rows", what="params") == {"params/rows"}


def test_a_tied_leaf_stands_in_for_one_that_is_left_out(stored: StoredLeaves) -> None:
    both = plan(stored, only=["params/odd", "params/tied"])
    assert both.aliases == {"params/tied": "params/odd"} and len(both.entries) == 1
    (alone,) = plan(stored, only=["params/tied"]).entries
    assert alone.tensor.name == "params/tied" and alone.leaf.array is not None


def test_dtypes_are_noted_where_the_format_has_no_name(stored: StoredLeaves) -> None:
    found = plan(stored)
    assert found.dtypes == {
        "nibbles": "int4",
        "rare": "float8_e4m3b11fnuz",
        "complex": "complex128",
        "rng": "key<fry>",
        "rngs": "key<rbg>",
        "no_rngs": "key<fry>",
    }
    assert found.key_impls["rngs"] == "rbg"


def test_a_cast_leaves_others_alone(stored: StoredLeaves) -> None:
    found = {e.leaf.path: e for e in plan(stored, dtype="float16").entries}
    assert found["params/half"].cast == found["params/empty"].tensor.dtype == np.float16
    for path in ("table", "flags", "rng", "complex", "opt/count"):
        assert found[path].cast is None


@pytest.mark.parametrize(
    "settings",
    [{"dtype": "f32"}, {"what": ""}, {"what": "params,x"}, {"separator": ""}],
)
def test_settings_out_of_range(stored: StoredLeaves, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        plan(stored, **settings)


def test_nothing_is_left(stored: StoredLeaves) -> None:
    with pytest.raises(CheckpointError, match=r"no leaf(.|\n)*parameter +7 leaves"):
        plan(stored, only=["nothing/*"])
