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
from pallas_kernels.pallas_tpu import dequantize_rows, quantize_rows
from tests.needs import needs_libtpu

CASES: dict[str, tuple[Any, Any]] = {
    "f32": ({}, jnp.float32),
    "int8": ({"state": "int8"}, jnp.float32),
    "by chance": ({"rounding": "stochastic"}, jnp.bfloat16),
}


def one_chip() -> NamedSharding:
    mesh = Mesh(pod_mesh("v5e:2x2").devices.ravel()[:1], ("data",))
    return NamedSharding(mesh, PartitionSpec())


@needs_libtpu
@pytest.mark.parametrize("name", CASES)
def test_it_compiles_in_place(name: str) -> None:
    options, dtype = CASES[name]
    tx = jzero.optim.adamw(1e-3, backend="pallas_tpu", **options)
    sharding = one_chip()

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


@needs_libtpu
@pytest.mark.parametrize("bits", (8, 4))
def test_quantizing_compiles(bits: Any) -> None:
    """Three blocks of rows, the last not full."""
    struct = jax.ShapeDtypeStruct((600, 256), jnp.float32, sharding=one_chip())

    @jax.jit
    def round_trip(values: jax.Array) -> Any:
        codes, scales = quantize_rows(values, bits=bits)
        return codes, scales, dequantize_rows(codes, scales, bits=bits)

    compiled = round_trip.lower(struct).compile()
    assert (compiled.as_text() or "").count("tpu_custom_call") == 2
    assert read_memory(compiled).temp_bytes < 1e6
