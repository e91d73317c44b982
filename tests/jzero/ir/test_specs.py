"""Arithmetic on specs with one entry per dim."""

from __future__ import annotations

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


def test_padding_and_back() -> None:
    assert to_dims(P("data"), 3) == ("data", None, None)
    assert to_dims(P(None, ("a", "b")), 2) == (None, ("a", "b"))
    assert to_spec(("data", None)) == P("data", None)
    assert is_sharded(("data", None)) and not is_sharded((None, None))


def test_the_leading_dim_of_a_loop() -> None:
    assert stack(("data",)) == (None, "data")
    assert unstack((None, "data")) == ("data",)
    assert unstack(("data", None)) is None
    assert unstack(()) is None


def test_permutations() -> None:
    order = (2, 0, 1)
    dims = ("a", "b", "c")
    assert permute(dims, order) == ("c", "a", "b")
    assert permute(permute(dims, order), inverse(order)) == dims


def test_only_units_may_come_and_go_in_a_reshape() -> None:
    assert reshape_units((None, "data"), (4, 8), (4, 1, 8)) == (None, None, "data")
    assert reshape_units((None, None, "data"), (4, 1, 8), (4, 8)) == (None, "data")
    assert reshape_units(("data", None), (4, 8), (32,)) is None
    assert reshape_units(("data", None), (1, 8), (8,)) is None
