"""A traced step, and what its plan says about inputs and outputs."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jzero.config import ZeroConfig
from jzero.ir.specs import to_dims
from jzero.ir.trace import (
    BatchSplit,
    batch_split,
    input_batch_dims,
    input_marks,
    output_dims,
)
from tests.jzero.passes.steps import EVERYTHING, line_mesh, trace_program, trace_step

FREE = PartitionSpec.UNCONSTRAINED


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_sharded_leaves_are_marked(stage: int) -> None:
    step, plan = trace_program("mlp", stage)
    marks = input_marks(step, plan)
    assert len(marks) == len(plan.state) + 1  # and the batch
    for leaf, (mark, placed) in enumerate(zip(marks, plan.state, strict=False)):
        assert (mark is not None) == placed.is_sharded
        if mark is not None:
            assert mark.leaf == leaf
            assert mark.dims == to_dims(placed.spec, len(placed.shape))
            assert not any(mark.base)
            assert mark.is_once == (stage < 3)
    assert any(marks) == (stage > 0)
    assert marks[-1] is None


def test_whole_leaves_are_marked_on_demand() -> None:
    config = ZeroConfig(persistence_threshold=17)
    step, plan = trace_program("odd_leaves", 3, config=config)
    shape = {p.path: p.shape for p in plan.state}
    some = dict(zip(shape, input_marks(step, plan), strict=False))
    more = dict(zip(shape, input_marks(step, plan, has_whole=True), strict=False))
    assert some["params['w']"] is not None
    assert some["params['odd']"] is None
    whole = more["params['odd']"]
    assert whole is not None and whole.dims == whole.base == (None, None)
    assert more["params['s']"] is None  # a scalar has no dims


def test_new_state_must_lie_as_planned() -> None:
    step, plan = trace_program("mlp", 2)
    dims = output_dims(step, plan)
    wanted = [to_dims(p.spec, len(p.shape)) for p in plan.state]
    assert list(dims) == [*wanted, None]  # and the loss
    assert any("data" in d for d in wanted)


def test_a_leaf_that_the_step_does_not_return_is_not_asked_for() -> None:
    step, plan = trace_program("mlp", 2)
    outs = (-1, *step.state_outs[1:])
    dims = output_dims(dataclasses.replace(step, state_outs=outs), plan)
    assert dims[0] is None
    assert dims[2] is not None


def test_the_batch_is_split_over_its_axes() -> None:
    _, plan = trace_program("mlp", 3)
    assert batch_split(plan) == BatchSplit(entry="data", num_parts=8)
    mesh = Mesh(
        np.array(jax.devices()).reshape(2, 4),
        ("replica", "data"),
        axis_types=(AxisType.Auto,) * 2,
    )
    config = ZeroConfig(persistence_threshold=0, batch_axis=("replica", "data"))
    _, plan = trace_program("mlp", 3, config=config, mesh=mesh)
    assert batch_split(plan) == BatchSplit(entry=("replica", "data"), num_parts=8)


def test_dims_of_a_split_value() -> None:
    split = BatchSplit(entry="data", num_parts=4)
    assert split.dims((8, 3), 0) == ("data", FREE)
    assert split.dims((3, 8), 1) == (FREE, "data")
    assert split.dims((8, 3), 1) is None
    assert split.dims((0, 3), 0) is None
    assert split.dims((8,), 1) is None
    dims = split.dims((8, 3), 0)
    assert dims is not None
    NamedSharding(line_mesh(4), PartitionSpec(*dims))


def test_where_the_batch_runs() -> None:
    def step(w: jax.Array, m: jax.Array, x: jax.Array, key: jax.Array) -> object:
        return w, m, (x @ w).sum() + jax.random.normal(key)

    args = (jnp.ones((8, 8)), jnp.ones((8, 8)), jnp.ones((16, 8)), jax.random.key(0))
    traced, plan = trace_step(step, args, 3, config=EVERYTHING)
    assert input_batch_dims(traced, plan) == [None, None, 0, None]


def test_a_step_with_another_program() -> None:
    step, _ = trace_program("mlp", 1)
    other, _ = trace_program("half_mlp", 1)
    new = step.with_jaxpr(other.jaxpr)
    assert new.jaxpr is other.jaxpr
    assert (new.mesh, new.state_ins) == (step.mesh, step.state_ins)
    assert step.jaxpr is not other.jaxpr
