"""The counter against what is known: data parallelism moves exactly one unit."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from benchmarks.annotations import place_state
from benchmarks.cases import Case
from benchmarks.compiled import Figures, compile_case
from jzero.audit.facts import find_collectives
from tests.gpt_model import build_gpt
from tests.needs import needs_compiler


def compiled(pod: str, stage: int, is_scanned: bool) -> Figures:
    case = Case(pod=pod, num_layers=3, width=256, num_tokens=128, is_scanned=is_scanned)
    return compile_case(case, stage, annotations=True)


@needs_compiler
@pytest.mark.parametrize(
    ("pod", "is_scanned"), [("h100:1x8", False), ("h100:8x8", True)]
)
def test_replicated_state_moves_one_unit(pod: str, is_scanned: bool) -> None:
    figures = compiled(pod, 0, is_scanned)
    # Gradients of the norms are reduced in float32, and the loss: 1/1000 here.
    assert figures.units == pytest.approx(1.0, abs=1e-3)
    assert {fact.kind for fact in figures.audit.collectives} == {"all-reduce"}
    resident = figures.audit.memory.argument_bytes
    assert resident == pytest.approx(figures.formula_bytes, rel=1e-3)
    largest = max(fact.max_part_elems for fact in figures.audit.collectives)
    assert largest == 32_000 * 256


@needs_compiler
def test_annotations_alone_gather_in_float32() -> None:
    figures = compiled("h100:1x8", 1, False)
    gathers = find_collectives(
        figures.audit.collectives, kind="all-gather", dtype="f32", min_elems=2**14
    )
    assert 32_000 * 256 in {fact.max_part_elems for fact in gathers}
    assert figures.units > 1.2


@pytest.mark.parametrize(("stage", "num_sharded"), [(0, 0), (1, 2), (2, 2), (3, 3)])
def test_what_is_sharded_by_the_stage(stage: int, num_sharded: int) -> None:
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",), axis_types=(AxisType.Auto,))
    gpt = build_gpt(width=256, num_layers=1)
    state = gpt.state_shapes()
    shardings = place_state(state, stage, mesh)
    resident = sum(
        math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf, sharding in zip(
            jax.tree.leaves(state), jax.tree.leaves(shardings), strict=True
        )
    )
    params = sum(leaf.size * 4 for leaf in jax.tree.leaves(state.params))
    expected = num_sharded * params / 8 + (3 - num_sharded) * params
    assert resident == pytest.approx(expected, rel=0.03)
