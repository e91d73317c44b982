"""What one equation does to a placement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from jzero.ir.rules import (
    ELEMENTWISE,
    constrained_dims,
    is_array,
    is_elementwise,
    is_reduction,
    keeps_elements,
    move_dims,
    moves_dims,
)
from tests.jzero.ir.jaxprs import DATA, eqn_of, trace
from tests.jzero.passes.steps import line_mesh

D = (DATA, None)  # of an (8, 4) array


@pytest.mark.parametrize(
    ("name", "function", "dims", "wanted"),
    [
        ("transpose", lambda x: x.T, D, (None, DATA)),
        ("reshape", lambda x: x.reshape(8, 1, 4), D, (DATA, None, None)),
        ("reshape", lambda x: x.reshape(4, 8), D, None),
        ("reshape", lambda x: x.reshape(32), D, None),
        ("broadcast_in_dim", lambda x: x[None], D, (None, DATA, None)),
        ("slice", lambda x: x[:, 1:3], D, D),
        ("slice", lambda x: x[2:4], D, None),
        ("slice", lambda x: x[:, ::2], D, None),
        ("slice", lambda x: x[2:4], (None, DATA), (None, DATA)),
        ("squeeze", lambda x: x.reshape(8, 1, 4).squeeze(1), (DATA, None, None), D),
        ("squeeze", lambda x: x[:1].squeeze(0), (DATA, None), None),
        ("reduce_sum", lambda x: x.sum(1), D, (DATA,)),
        ("reduce_sum", lambda x: x.sum(0), D, (None,)),
        ("reduce_max", lambda x: x.max(), D, ()),
        ("reduce_min", lambda x: x.min(1), D, (DATA,)),
        ("reduce_prod", lambda x: x.prod(1), D, (DATA,)),
        ("reduce_and", lambda x: (x > 0).all(1), D, (DATA,)),
        ("reduce_or", lambda x: (x > 0).any(1), D, (DATA,)),
    ],
)
def test_rearranging_follows_the_shard(
    name: str, function: Callable[..., Any], dims: Any, wanted: Any
) -> None:
    eqn = eqn_of(trace(function, (8, 4)), name)
    assert moves_dims(eqn)
    assert move_dims(eqn, dims) == wanted


def test_a_repeated_array_is_not_the_same_array() -> None:
    eqn = eqn_of(trace(lambda x: jnp.broadcast_to(x, (4, 8)), (8,)), "broadcast_in_dim")
    assert move_dims(eqn, (DATA,)) is None


def test_a_dynamic_slice_may_not_cut_the_split_dim() -> None:
    def row(x: jax.Array, i: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(x, (i, 0), (1, 4))

    eqn = eqn_of(trace(row, (8, 4), jax.ShapeDtypeStruct((), "int32")), "dynamic_slice")
    assert move_dims(eqn, (None, DATA)) == (None, DATA)
    assert move_dims(eqn, (DATA, None)) is None


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x + y,
        lambda x, y: jnp.where(x > y, x, y),
        lambda x, y: x.astype(jnp.bfloat16),
        lambda x, y: jax.lax.clamp(0.0, x, 1.0),
        lambda x, y: x * 2.0,
        lambda x, y: (
            jax.ad_checkpoint.checkpoint_name(x, "a")
            if hasattr(jax, "ad_checkpoint")
            else jnp.tanh(x)
        ),
    ],
)
def test_elementwise(function: Callable[..., Any]) -> None:
    jaxpr = trace(function, (8, 4), (8, 4))
    names = {e.primitive.name for e in jaxpr.eqns if e.primitive.name in ELEMENTWISE}
    assert names
    assert all(is_elementwise(eqn_of(jaxpr, name)) for name in names)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ x.T,
        lambda x: jnp.sort(x),
        lambda x: jnp.cumsum(x, 0),
        lambda x: jnp.fft.fft(x),
        lambda x: x[::-1],
        lambda x: jnp.concatenate([x, x]),
        lambda x: jnp.argmax(x, 0),
    ],
)
def test_what_no_rule_knows_needs_the_whole(function: Callable[..., Any]) -> None:
    jaxpr = trace(function, (8, 4))
    last = jaxpr.eqns[-1]
    assert not is_elementwise(last)
    assert not is_reduction(last)


def test_only_reductions_may_run_on_a_shard_without_a_placement() -> None:
    jaxpr = trace(lambda x: (x.sum(0), x.T, x.max()), (8, 4))
    assert is_reduction(eqn_of(jaxpr, "reduce_sum"))
    assert is_reduction(eqn_of(jaxpr, "reduce_max"))
    assert not is_reduction(eqn_of(jaxpr, "transpose"))


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda x: x.T, True),
        (lambda x: x[None], True),
        (lambda x: x[:, :2], False),
        (lambda x: x.sum(0), False),
        (lambda x: x * 2, False),
        (lambda x: jnp.broadcast_to(x[None], (3, 8, 4)), False),
        (lambda x: jnp.sort(x), False),
    ],
)
def test_what_only_rearranges(function: Callable[..., Any], wanted: bool) -> None:
    assert keeps_elements(trace(function, (8, 4)).eqns[-1]) == wanted


def test_where_a_constraint_puts_its_operand() -> None:
    place = NamedSharding(line_mesh(), PartitionSpec(DATA))
    single = SingleDeviceSharding(jax.devices()[0])
    for sharding, wanted in ((place, (DATA, None)), (single, None)):
        put = lambda x, s=sharding: jax.lax.with_sharding_constraint(x, s)  # noqa: E731
        eqn = eqn_of(trace(put, (8, 4)), "sharding_constraint")
        assert constrained_dims(eqn) == wanted


def test_arrays_are_not_scalars_and_not_references() -> None:
    jaxpr = trace(lambda x: jax.freeze(jax.new_ref(x)) + x[0, 0], (8, 4))
    assert is_array(jaxpr.jaxpr.invars[0].aval)
    assert not is_array(eqn_of(jaxpr, "new_ref").outvars[0].aval)
    assert not is_array(eqn_of(jaxpr, "squeeze").outvars[0].aval)
