"""Specs as plain tuples."""

from __future__ import annotations

import pytest
from jax.sharding import PartitionSpec as P

from jzero.ir.specs import (
    inverse,
    is_sharded,
    permute,
    reshape_units,
    stack,
    to_dims,
    to_spec,
    unstack,
)


def test_a_spec_gets_one_entry_per_dim() -> None:
    assert to_dims(P("data"), 3) == ("data", None, None)
    assert to_dims(P(None, ("data", "model")), 2) == (None, ("data", "model"))
    assert to_dims(["data", ["a", "b"]], 2) == ("data", ("a", "b"))
    assert to_dims(P(), 0) == ()
    assert to_spec((None, "data")) == P(None, "data")


def test_stacking_adds_a_whole_leading_dim() -> None:
    assert stack(("data", None)) == (None, "data", None)
    assert unstack(stack(("data", None))) == ("data", None)


def test_a_sharded_leading_dim_cannot_be_unstacked() -> None:
    assert unstack(("data", None)) is None
    assert unstack(()) is None


@pytest.mark.parametrize("permutation", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)])
def test_the_inverse_undoes_a_permutation(permutation: tuple[int, ...]) -> None:
    dims = ("a", None, "c")
    assert permute(permute(dims, permutation), inverse(permutation)) == dims


@pytest.mark.parametrize(
    ("dims", "old", "new", "wanted"),
    [
        (("data", None), (8, 4), (8, 1, 4), ("data", None, None)),
        ((None, "data"), (8, 4), (1, 8, 4, 1), (None, None, "data", None)),
        ((None, "data", None), (1, 8, 4), (8, 4), ("data", None)),
        (("data",), (8,), (8,), ("data",)),
        (("data",), (8,), (2, 4), None),
        (("data", None), (8, 4), (32,), None),
        (("data", None), (8, 4), (4, 8), None),
        (("data", None), (1, 4), (4,), None),  # the dim of size 1 is the split one
        (("data", None), (0, 4), (4, 0), None),
    ],
)
def test_only_dims_of_size_one_may_come_and_go(
    dims: tuple[str | None, ...],
    old: tuple[int, ...],
    new: tuple[int, ...],
    wanted: tuple[str | None, ...] | None,
) -> None:
    assert reshape_units(dims, old, new) == wanted


def test_is_sharded() -> None:
    assert is_sharded((None, "data"))
    assert not is_sharded((None, None))
    assert not is_sharded(())
