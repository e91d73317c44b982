from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jzero
from jzero.audit.collectives import read_collectives
from jzero.audit.facts import CollectiveFacts
from jzero.audit.names import has_elems, leaf_numbers, name_leaves
from jzero.plan.plan import LeafPlan, Plan

SHAPES = {
    "block_0": {"kernel": (16, 24), "bias": (24,)},
    "block_1": {"kernel": (16, 24), "bias": (24,)},
    "layers": {"kernel": (6, 16, 8)},
}


def plan() -> Plan:
    def train_step(params: Any, x: jax.Array):
        return jax.tree.map(lambda p: p - x.mean(), params), x.sum()

    step = jzero.shard_train_step(
        train_step, config=jzero.ZeroConfig(persistence_threshold=0)
    )
    params = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
        SHAPES,
        is_leaf=lambda x: isinstance(x, tuple),
    )
    return step.plan(params, jax.ShapeDtypeStruct((8, 2), jnp.float32))


def fact(kind: str, shape: str, op_name: str, trips: int = 1) -> CollectiveFacts:
    text = f"""HloModule m, num_partitions=8

%body (x: {shape}) -> {shape} {{
  %x = {shape} parameter(0)
  ROOT %y = {shape} {kind}(%x), replica_groups=[1,8]<=[8], \
metadata={{op_name="{op_name}"}}
}}

%test (x: {shape}) -> pred[] {{
  %x = {shape} parameter(0)
  ROOT %lt = pred[] is-finite(%x)
}}

ENTRY %main (x: {shape}) -> {shape} {{
  %x = {shape} parameter(0)
  ROOT %w = {shape} while(%x), condition=%test, body=%body, \
backend_config={{"known_trip_count":{{"n":"{trips}"}}}}
}}
"""
    (found,) = read_collectives(text)
    return found


def names(found: CollectiveFacts) -> list[str]:
    return [leaf.path for leaf in name_leaves(found, plan())]


def test_a_gather_says_its_leaves_itself() -> None:
    """Leaves are numbered as the plan lists them: sorted by path here."""
    joined = (
        "jit(f)/jvp(jzero.gather/jzero.leaf3:jzero.leaf1)/barrier:jzero.leaf3/convert"
    )
    assert leaf_numbers(joined) == (3, 1)
    paths = [leaf.path for leaf in plan().state]
    found = fact("all-gather", "bf16[7]", joined)
    assert names(found) == [paths[3], paths[1]]
    assert leaf_numbers("jit(f)/dot_general") == ()


@pytest.mark.parametrize("block", ["block_0", "block_1"])
def test_a_gradient_is_known_by_its_shape_and_its_module(block: str) -> None:
    found = fact("reduce-scatter", "bf16[24,16]", f"jit(f)/GPT/{block}/dot_general")
    assert names(found) == [f"params['{block}']['kernel']"]


def test_a_layer_in_a_loop_over_layers() -> None:
    one = fact("all-reduce", "f32[128]", "jit(f)/layers/dot_general", trips=6)
    assert names(one) == ["params['layers']['kernel']"]
    # As many elements, and no such loop around them.
    other = fact("all-reduce", "f32[128]", "jit(f)/layers/dot_general", trips=5)
    assert names(other) == []


def test_what_nobody_can_know_has_no_name() -> None:
    assert names(fact("all-reduce", "f32[16,24]", "jit(f)/dot_general")) == []
    assert names(fact("all-reduce", "f32[13]", "jit(f)/block_0/reduce")) == []


@pytest.mark.parametrize(
    ("num_elems", "runs", "expected"),
    [(768, 1, True), (128, 6, True), (128, 12, True), (128, 1, False), (64, 6, False)],
)
def test_elements_of_a_stack(num_elems: int, runs: int, expected: bool) -> None:
    leaf: LeafPlan = next(x for x in plan().state if "layers" in x.path)
    assert has_elems(leaf, num_elems, runs) is expected
