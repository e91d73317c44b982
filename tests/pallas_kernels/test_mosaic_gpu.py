"""GPU kernels, compiled for eight H100s that are not there: in place, on shards.

That they compute the right numbers is tested by the interpreter, in `test_fused.py`.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jzero
from jzero.audit.collectives import read_collectives
from jzero.audit.memory import read_memory
from jzero.audit.pods import pod_mesh
from pallas_kernels import dequantize_blocks, quantize_blocks
from pallas_kernels.compat import has_mosaic_gpu
from tests.needs import needs_compiler
from tests.pallas_kernels.compiled import (
    NUM_ELEMS,
    WIDTH,
    compile_for_h100,
    compile_update,
)

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(not has_mosaic_gpu(), reason="kernels need JAX 0.12"),
]

GPU: dict[str, Any] = {"backend": "mosaic_gpu"}
# Bytes read and written for each element: parameter, gradient, two moments, scales.
CASES: dict[str, tuple[Any, Any, float]] = {
    "f32": (jzero.optim.adamw(1e-3, **GPU), jnp.float32, 28),
    "int8": (jzero.optim.adamw(1e-3, state="int8", **GPU), jnp.float32, 16 + 4 / 64),
    "int8, by chance": (
        jzero.optim.adamw(1e-3, state="int8", rounding="stochastic", **GPU),
        jnp.bfloat16,
        10 + 4 / 64,
    ),
    "f32 under masters": (
        jzero.optim.with_master_weights(jzero.optim.adamw(1e-3, **GPU)),
        jnp.bfloat16,
        # The old 16-bit parameters are not even an argument.
        2 + 12 + 12 + 2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_in_place_on_shards_and_no_byte_more_than_designed(name: str) -> None:
    tx, dtype, num_bytes = CASES[name]
    compiled = compile_update(tx, dtype, num_small=12)
    memory = read_memory(compiled)
    assert not read_collectives(compiled.as_text())
    assert memory.temp_bytes < 1e6
    # One kernel for the matrix, one for all vectors.
    text = compiled.as_text()
    assert text.count('custom_call_target="mosaic_gpu') == 2
    # Nothing lies beside arguments and results, so that is all that can be touched.
    read, written = memory.argument_bytes, memory.output_bytes
    assert (read + written) / NUM_ELEMS == pytest.approx(num_bytes, rel=0.05)
    fresh = 2 * NUM_ELEMS if name == "f32 under masters" else 0
    assert memory.output_bytes - memory.alias_bytes < fresh + 1e4


def test_hundreds_of_small_leaves_are_not_hundreds_of_launches() -> None:
    """Nor of fusions that lay them side by side; XLA alone makes one for each."""
    tx = jzero.optim.adamw(1e-3, **GPU)
    text = compile_update(tx, jnp.float32, num_small=130).as_text()
    entry = text[text.index("\nENTRY") :]
    assert entry.count('custom_call_target="mosaic_gpu') == 1 + 3
    launches = re.findall(r" (?:fusion|custom-call|copy|slice|pad)\(", entry)
    assert len(launches) < 40


@pytest.mark.parametrize("bits", (8, 4))
def test_quantizing_there_and_back_moves_nothing(bits: Any) -> None:
    mesh = pod_mesh("h100:1x8")

    def round_trip(values: jax.Array) -> Any:
        codes, scales = quantize_blocks(values, bits=bits, **GPU)
        back = dequantize_blocks(codes, scales, length=WIDTH, bits=bits, **GPU)
        return codes, scales, back

    sharding = NamedSharding(mesh, PartitionSpec("data"))
    struct = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32, sharding=sharding)
    jitted = jax.jit(round_trip, out_shardings=sharding)
    compiled = compile_for_h100(jitted, mesh, struct)
    memory, text = read_memory(compiled), compiled.as_text()
    assert text.count('custom_call_target="mosaic_gpu') == 2
    assert not read_collectives(text)
    assert memory.temp_bytes < 1e6
    num_bytes = 4 + bits / 8 + 4 / 256 + 4  # values, codes, scales, values
    read, written = memory.argument_bytes, memory.output_bytes
    assert (read + written) / NUM_ELEMS == pytest.approx(num_bytes, rel=0.01)
