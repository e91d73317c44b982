"""The TPU kernel, compiled for a TPU that is not there: in place.

That it computes the right numbers is tested by the interpreter, in `test_fused.py`.
One chip alone: the compiler for absent TPUs does not know custom partitioning.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jzero
from jzero.audit.memory import read_memory
from jzero.audit.pods import pod_mesh
from tests.needs import needs_libtpu

CASES: dict[str, tuple[Any, Any]] = {
    "f32": ({}, jnp.float32),
    "int8": ({"state": "int8"}, jnp.float32),
    "by chance": ({"rounding": "stochastic"}, jnp.bfloat16),
}


@needs_libtpu
@pytest.mark.parametrize("name", CASES)
def test_it_compiles_in_place(name: str) -> None:
    options, dtype = CASES[name]
    tx = jzero.optim.adamw(1e-3, backend="pallas_tpu", **options)
    mesh = Mesh(pod_mesh("v5e:2x2").devices.ravel()[:1], ("data",))
    sharding = NamedSharding(mesh, PartitionSpec())

    def place(tree: Any) -> Any:
        return jax.tree.map(
            lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), tree
        )

    shapes = {"w": (1024, 1024), "b": (100,)}
    structs = {k: jax.ShapeDtypeStruct(s, dtype) for k, s in shapes.items()}
    params, state = place(structs), place(jax.eval_shape(tx.init, structs))

    def update(params: Any, state: Any, grads: Any) -> Any:
        return tx.apply(grads, state, params)[:2]

    jitted = jax.jit(update, donate_argnums=(0, 1))
    compiled = jitted.lower(params, state, params).compile()
    memory = read_memory(compiled)
    assert (compiled.as_text() or "").count("tpu_custom_call") == 2
    assert memory.temp_bytes < 1e6
    assert memory.output_bytes - memory.alias_bytes < 1e4
