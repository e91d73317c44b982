"""GPU kernels, compiled for eight H100s that are not there: in place, on shards.

That they compute the right numbers is tested by the interpreter, in `test_fused.py`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

import jzero
from jzero.audit.collectives import read_collectives
from jzero.audit.memory import read_memory
from pallas_kernels.compat import has_mosaic_gpu
from tests.needs import needs_compiler
from tests.pallas_kernels.compiled import NUM_ELEMS, compile_update

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
