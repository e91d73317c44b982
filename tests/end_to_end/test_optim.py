"""Optimizers of `jzero.optim` under sharding: one device's numbers, nothing moved."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jzero
from jzero.audit.collectives import read_collectives
from jzero.audit.pods import COMPILER_OPTIONS, pod_mesh
from pallas_kernels.compat import has_mosaic_gpu
from tests.end_to_end.oracle import SHARD_ALL, mesh_of
from tests.needs import needs_compiler

NUM_DEVICES = 8


def loss_fn(params: Any, x: jax.Array) -> jax.Array:
    h = jnp.tanh(x.astype(params["in"].dtype) @ params["in"] + params["bias"])
    return ((h @ params["out"]) ** 2).mean()


def train_step(state: jzero.TrainState, x: jax.Array) -> Any:
    loss, grads = jax.value_and_grad(loss_fn)(state.params, x)
    return state.apply_gradients(grads=grads), loss


def create(tx: Any, dtype: Any) -> jzero.TrainState:
    keys = jax.random.split(jax.random.key(0))
    params = {
        "in": jax.random.normal(keys[0], (256, 128)).astype(dtype),
        "bias": jnp.ones((1, 128), dtype),
        "out": jax.random.normal(keys[1], (128, 256)).astype(dtype),
    }
    return jzero.TrainState.create(apply_fn=None, params=params, tx=tx)


CASES: dict[str, tuple[Any, Any]] = {
    "int8": (jzero.optim.adamw(1e-2, state="int8"), jnp.float32),
    "int8, by chance": (
        jzero.optim.adamw(1e-2, state="int8", params="bf16", rounding="stochastic"),
        jnp.bfloat16,
    ),
    "int8 under masters": (
        jzero.optim.with_master_weights(jzero.optim.lion(1e-3, state="int8")),
        jnp.bfloat16,
    ),
}
STAGES = [(name, 3) for name in CASES] + [("int8", stage) for stage in range(3)]


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(16, 256)).astype(np.float32)


@pytest.mark.parametrize(("name", "stage"), STAGES)
def test_equals_one_device_and_moves_only_weights_and_gradients(
    name: str, stage: int
) -> None:
    tx, dtype = CASES[name]
    alone, want = jax.jit(train_step), create(tx, dtype)
    step = jzero.shard_train_step(
        train_step, stage=stage, mesh=mesh_of(NUM_DEVICES), config=SHARD_ALL
    )
    state = step.shard(create(tx, dtype))
    for i in range(3):
        want, loss = alone(want, rows(i))
        state, got = step(state, rows(i))
        rtol = 1e-4 if dtype == jnp.float32 else 3e-2
        np.testing.assert_allclose(
            np.float32(got), np.float32(loss), rtol=rtol, err_msg=str(i)
        )
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(want), strict=True)
    for leaf, other in pairs:
        assert (leaf.dtype, leaf.shape) == (other.dtype, other.shape)
        is_whole = leaf.addressable_shards[0].data.shape == leaf.shape
        assert is_whole == (stage == 0 or leaf.ndim < 2), "codes and scales too"
    compiled = step.lower(state, rows(0)).compile()
    facts = read_collectives(compiled.as_text())
    # Weights are gathered and gradients reduced, once each; the update moves nothing.
    gathered = sum(
        part.num_elems for f in facts if f.kind == "all-gather" for part in f.parts
    )
    num_params = sum(p.size for p in jax.tree.leaves(want.params))
    assert gathered <= (num_params if stage else 0)
    assert {f.kind for f in facts} <= {"all-gather", "all-reduce", "reduce-scatter"}
    reduced = [
        part.num_elems for f in facts if f.kind == "all-reduce" for part in f.parts
    ]
    assert sum(reduced) <= num_params + 4


@needs_compiler
def test_compiled_for_gpus_gradients_are_still_reduce_scattered() -> None:
    """8-bit moments, by the GPU kernel where this JAX has one."""
    config = jzero.ZeroConfig(kernels="mosaic_gpu" if has_mosaic_gpu() else "xla")
    tx = jzero.optim.adamw(1e-3, state="int8")
    mesh = pod_mesh("h100:1x8")
    state = jax.eval_shape(lambda: create(tx, jnp.float32))
    batch = jax.ShapeDtypeStruct((64, 256), jnp.float32)
    step = jzero.shard_train_step(train_step, stage=3, mesh=mesh, config=config)
    chip = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", 132, "gpu")
    abstract = mesh.abstract_mesh.update(abstract_device=chip)
    context = jax.sharding.use_abstract_mesh(abstract)
    with context if has_mosaic_gpu() else contextlib.nullcontext():
        lowered = step.lower(state, batch)
    compiled = lowered.compile(compiler_options=dict(COMPILER_OPTIONS))
    moved = [
        (fact.kind, part.num_elems)
        for fact in read_collectives(compiled.as_text())
        for part in fact.parts
        if part.num_elems > 128
    ]
    size = 256 * 128
    assert sorted(moved) == [
        ("all-gather", size // NUM_DEVICES),
        ("all-gather", size // NUM_DEVICES),
        ("reduce-scatter", size),
        ("reduce-scatter", size),
    ]
    num_kernels = (compiled.as_text() or "").count('custom_call_target="mosaic_gpu')
    assert bool(num_kernels) is has_mosaic_gpu()


@pytest.mark.parametrize("name", CASES)
def test_codes_scales_and_seeds_come_back_bit_for_bit(
    name: str, tmp_path: Path
) -> None:
    tx, dtype = CASES[name]
    step = jzero.shard_train_step(train_step, config=SHARD_ALL)
    state = step.init(lambda: create(tx, dtype))
    state, _ = step(state, rows(0))
    with jzero.Checkpointer(tmp_path, step) as saver:
        saver.save(0, state)
        saver.wait()
        restored = saver.restore(like=step.birth(lambda: create(tx, dtype)))
    pairs = zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True)
    for one, other in pairs:
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    results = [step(s, rows(1)) for s in (state, restored)]
    assert float(results[0][1]) == float(results[1][1])
