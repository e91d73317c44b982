"""Annotated programs: what they are, and what the counter says of them."""

from __future__ import annotations

import dataclasses
import datetime
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from benchmarks.annotations.__main__ import (
    MODELS,
    WAYS,
    load,
    render,
    save,
    summarize,
)
from benchmarks.annotations.arguments import place_state
from benchmarks.annotations.careful import lower_careful
from benchmarks.cases import Case
from benchmarks.compiled import Figures, compile_case
from jzero.audit.facts import find_collectives
from tests.gpt_model import batch_shapes, build_gpt
from tests.needs import needs_compiler


def compiled(pod: str, stage: int, is_scanned: bool) -> Figures:
    case = Case(pod=pod, num_layers=2, width=256, num_tokens=128, is_scanned=is_scanned)
    return compile_case(case, stage, way="arguments")


@needs_compiler
@pytest.mark.parametrize(
    ("pod", "is_scanned"), [("h100:1x8", False), ("h100:8x8", True)]
)
def test_replicated_state_moves_one_unit(pod: str, is_scanned: bool) -> None:
    figures = compiled(pod, 0, is_scanned)
    # Gradients of the norms are reduced in float32, and the loss: 1/1000 here.
    assert figures.units == pytest.approx(1.0, abs=1e-3)
    assert {fact.kind for fact in figures.collectives} == {"all-reduce"}
    resident = figures.memory.argument_bytes
    assert resident == pytest.approx(figures.formula_bytes, rel=1e-3)
    largest = max(fact.max_part_elems for fact in figures.collectives)
    assert largest == 32_000 * 256


@needs_compiler
def test_annotations_alone_gather_in_float32() -> None:
    figures = compiled("h100:1x8", 1, False)
    gathers = find_collectives(
        figures.collectives, kind="all-gather", dtype="f32", min_elems=2**14
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


TINY = Case(pod="h100:1x8", num_layers=2, width=128, num_tokens=32, is_scanned=True)
VOCAB = 512


def test_the_annotated_step_trains_as_the_plain_one() -> None:
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",), axis_types=(AxisType.Auto,))
    gpt = build_gpt(vocab=VOCAB, width=128, num_layers=2, is_scanned=True)
    ids = jax.random.randint(jax.random.key(1), (16, 33), 0, VOCAB)
    batch = {"x": ids[:, :-1], "y": ids[:, 1:]}
    state = jax.jit(gpt.create)(jax.random.key(0), ids[:1, :8])
    shapes = batch_shapes(16, 32)
    lowered = lower_careful(
        TINY, gpt.state_shapes(), shapes, stage=3, mesh=mesh, vocab=VOCAB
    )
    plain, metrics = jax.jit(gpt.step)(state, batch)
    step = lowered.compile()
    placed = jax.device_put((state, batch), step.input_shardings[0])
    careful, careful_metrics = step(*placed)
    assert float(careful_metrics["loss"]) == pytest.approx(
        float(metrics["loss"]), rel=1e-3
    )
    assert jax.tree.structure(careful.params) == jax.tree.structure(plain.params)
    moments = [
        jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(found.opt_state)])
        for found in (plain, careful)
    ]
    # Norms are cast too, and sums are of other orders: bfloat16 has 3 digits.
    error = jnp.linalg.norm(moments[0] - moments[1])
    assert error < 0.03 * jnp.linalg.norm(moments[0])


def test_the_annotated_step_has_one_micro_batch() -> None:
    case = dataclasses.replace(TINY, num_micro_batches=2)
    with pytest.raises(ValueError, match="one micro-batch"):
        compile_case(case, 3, way="careful", vocab=VOCAB)


@needs_compiler
def test_careful_annotations_beside_jzero(tmp_path: Path) -> None:
    careful, made = (compile_case(TINY, 3, way=way, vocab=VOCAB) for way in WAYS)
    for figures in (careful, made):
        gathers = find_collectives(
            figures.collectives, kind="all-gather", dtype="f32", min_elems=2**14
        )
        assert not gathers
        assert 1.0 < figures.units < 1.6
        assert figures.num_devices == 8
    row = summarize(careful, made, 3)
    # Annotations shard small leaves too.
    assert row.careful.resident_bytes <= row.jzero.resident_bytes
    path = tmp_path / "rows" / "row.json"
    save(path, row)
    assert load(path) == row
    text = render({"scanned": [row]}, datetime.date(2030, 1, 2))
    assert "2030-01-02" in text and MODELS["scanned"].title in text
    peak = f"{made.memory.device_peak_bytes / 1e6:.0f}"
    (line,) = (line for line in text.splitlines() if line.startswith("| 8 | 3 |"))
    assert line.split("|")[7].strip() == peak
