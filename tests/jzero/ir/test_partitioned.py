"""Equations that say how they run on shards: which of them are element by element."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.custom_partitioning import custom_partitioning

from jzero.compat.jaxpr import inner
from jzero.ir.demands import Demands
from jzero.ir.marks import Analysis
from jzero.ir.partitioned import dims_of, read_shardwise
from pallas_kernels.shardwise import Dim, shardwise
from tests.jzero.ir.jaxprs import DATA, eqn_of, shard, trace

ROWS, COLUMNS = Dim("rows", 8), Dim("columns", 2)
BOTH = (ROWS, COLUMNS)


def update(w: jax.Array, g: jax.Array, scales: jax.Array) -> Any:
    """(8, 512), (8, 512), (8, 2) -> the first and the last."""
    fixed = jnp.ones(3)
    return shardwise(
        lambda place, fixed, w, g, s: [w - g, s],
        [fixed, w, g, scales],
        operands=[(Dim("fixed", 1),), BOTH, BOTH, BOTH],
        results=[BOTH, BOTH],
    )


def declared(rule: str, **sizes: Any) -> Any:
    """A user's own operation with a rule."""

    @custom_partitioning
    def op(x: jax.Array, y: jax.Array) -> jax.Array:
        return x @ y

    op.def_partition(partition=None, sharding_rule=rule, **sizes)
    return op


def test_element_by_element_with_blocks() -> None:
    eqn = eqn_of(trace(update, (8, 512), (8, 512), (8, 2)), "custom_partitioning")
    found = read_shardwise(eqn)
    assert found is not None
    assert found.operands[1:] == (("rows", "columns"),) * 3
    assert found.results == (("rows", "columns"),) * 2


@pytest.mark.parametrize(
    ("rule", "extra"),
    [
        ("a k, k b -> a b", {}),
        ("a b, b c -> a c", {"reduction_factors": ("b",)}),
        ("a b, b c -> a b", {"need_replication_factors": ("b",)}),
    ],
)
def test_a_product_is_not(rule: str, extra: Any) -> None:
    jaxpr = trace(declared(rule, **extra), (8, 8), (8, 8))
    eqn = eqn_of(jaxpr, "custom_partitioning")
    assert read_shardwise(eqn) is None
    flow = Analysis().flow(jaxpr, [shard(DATA, None), None])
    assert flow.outs == (None,), "so its operands are gathered"


def test_marks_go_through_and_gradients_are_wanted() -> None:
    jaxpr = trace(update, (8, 512), (8, 512), (8, 2))
    analysis = Analysis()
    marks = [shard(DATA, None), None, shard(DATA, None)]
    outs = analysis.flow(jaxpr, marks).outs
    assert [m.dims for m in outs if m] == [(DATA, None)] * 2
    wanted = Demands(analysis).of(jaxpr, marks, [None, None])
    assert wanted.ins == (None, (DATA, None), None)


def test_what_is_wanted_of_results_is_wanted_of_operands() -> None:
    jaxpr = trace(update, (8, 512), (8, 512), (8, 2))
    wanted = Demands(Analysis()).of(jaxpr, [None] * 3, [(DATA, None), None])
    assert wanted.ins == ((DATA, None),) * 3


def test_dims_of_names() -> None:
    assert dims_of(("a", "b"), {"a": "data"}) == ("data", None)
    assert dims_of(("a", "b"), {"c": "data"}) is None
    assert not [e for e in inner(trace(jnp.sin, (8,))).eqns if read_shardwise(e)]
