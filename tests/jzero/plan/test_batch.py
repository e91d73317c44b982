"""How the arguments that are not state are split."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jzero.errors import BatchError, MeshError
from jzero.plan.batch import BatchFacts, BatchLeafPlan, plan_batch

SIZES = {"data": 8}


def _leaf(path: str, *shape: int, dtype: Any = "f4", **kwargs: Any) -> BatchFacts:
    arg = kwargs.pop("arg", 1)
    dtype = np.dtype(dtype) if isinstance(dtype, str) else dtype
    return BatchFacts(path=path, arg=arg, shape=shape, dtype=dtype, **kwargs)


def _plan(*leaves: BatchFacts, **kwargs: Any) -> tuple[BatchLeafPlan, ...]:
    options: dict[str, Any] = {"axis_sizes": SIZES, "batch_axes": ("data",)} | kwargs
    return plan_batch(leaves, **options)


def test_arrays_that_share_a_dim_are_the_batch() -> None:
    plans = _plan(_leaf("x", 16, 28, 28), _leaf("y", 16, dtype="i4"), _leaf("lr"))
    assert [plan.spec for plan in plans] == [P("data"), P("data"), P()]
    assert plans[0].reason == "dim 0 of 16 over data=8"
    assert plans[2].reason == "a scalar"


@pytest.mark.parametrize(
    "key",
    [
        _leaf("key", dtype=jax.random.key(0).dtype),
        _leaf("keys", 3, dtype=jax.random.key(0).dtype),
        _leaf("raw", 2, dtype="u4"),
        _leaf("rbg", 4, dtype="u4"),
        _leaf("told", 5, 2, dtype="u4", is_key=True),
    ],
    ids=lambda leaf: leaf.path,
)
def test_keys_are_replicated(key: BatchFacts) -> None:
    x, planned = _plan(_leaf("x", 16, 3), key)
    assert x.spec == P("data")
    assert planned.spec == P() and planned.reason == "a random key"


def test_micro_batches() -> None:
    plans = _plan(
        _leaf("x", 4, 16, 3, scanned=True),
        _leaf("y", 4, 16, scanned=True),
        _leaf("lr", 4, scanned=True),
    )
    assert [plan.spec for plan in plans] == [P(None, "data"), P(None, "data"), P()]
    assert plans[0].reason == "dim 1 of 16 over data=8"
    assert plans[2].reason == "one number per turn of a loop"


def test_a_dim_of_one_broadcasts() -> None:
    x, mask = _plan(_leaf("x", 16, 3), _leaf("mask", 1, 3))
    assert x.spec == P("data") and mask.spec == P()
    assert "broadcasts" in mask.reason


def test_several_batch_axes() -> None:
    sizes = {"data": 2, "fsdp": 4, "model": 1}
    (x,) = _plan(_leaf("x", 16), axis_sizes=sizes, batch_axes=("data", "fsdp"))
    assert x.spec == P(("data", "fsdp"))
    assert x.reason == "dim 0 of 16 over data=2 x fsdp=4"


def test_named_arguments() -> None:
    leaves = [_leaf("x", 16, 3), _leaf("weights", 10, arg=2)]
    x, weights = _plan(*leaves, batch_args=(1,))
    assert x.spec == P("data") and weights.spec == P()
    assert weights.reason == "not named by batch_argnums"
    with pytest.raises(BatchError, match="hold no array"):
        _plan(*leaves, _leaf("n", arg=3), batch_args=(3,))
    with pytest.raises(BatchError, match=r"weights(.|\n)*argument of its own"):
        _plan(*leaves, batch_args=(1, 2))


def test_disagreement_lists_the_candidates() -> None:
    with pytest.raises(BatchError) as caught:
        _plan(_leaf("batch['x']", 16, 3), _leaf("classes", 10), _leaf("lr"))
    text = str(caught.value)
    assert "batch['x']  (16, 3): dim 0 of 16" in text
    assert "classes     (10,): dim 0 of 10" in text
    assert "lr" not in text
    assert "batch_argnums" in text


@pytest.mark.parametrize(
    ("size", "remedy"), [(10, "8 or 16"), (7, "8"), (1, "8"), (23, "16 or 24")]
)
def test_indivisible_batch(size: int, remedy: str) -> None:
    with pytest.raises(BatchError) as caught:
        _plan(_leaf("x", size, 3), _leaf("lr"))
    text = str(caught.value)
    assert f"A batch of {size} does not divide over 8 devices (data=8)" in text
    assert f"x  ({size}, 3): dim 0 of {size}" in text
    assert f"use a batch of {remedy}:" in text


def test_no_batch_at_all() -> None:
    assert _plan() == ()
    assert _plan(_leaf("n"))[0].spec == P()
    assert _plan(_leaf("x", 3), axis_sizes={"data": 1})[0].spec == P("data")


def test_mesh_without_the_batch_axis() -> None:
    with pytest.raises(MeshError, match="batch_axis"):
        _plan(_leaf("x", 8), batch_axes=("rows",))


def test_plans_hash() -> None:
    assert len({_plan(_leaf("x", 16)), _plan(_leaf("x", 16))}) == 1
