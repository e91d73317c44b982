"""The arithmetic of sharded optimizers: references in plain JAX, and GPU kernels.

Imports jax and nothing else. Every public function computes the same on every
backend; what a kernel means is the plain function that it shares its arithmetic with.
"""

from pallas_kernels.backends import Backend, check_backend
from pallas_kernels.blocks import choose_tile, scales_shape
from pallas_kernels.codes import code_dtype, code_table, decode, encode
from pallas_kernels.fused import fused_update
from pallas_kernels.quantize import dequantize_blocks, quantize_blocks
from pallas_kernels.rounding import stochastic_round
from pallas_kernels.rules import AdamW, Lion, Momentum, Scalars
from pallas_kernels.update import LeafFormat, LeafState, Updated, update_leaf

__all__ = [
    "AdamW",
    "Backend",
    "LeafFormat",
    "LeafState",
    "Lion",
    "Momentum",
    "Scalars",
    "Updated",
    "check_backend",
    "choose_tile",
    "code_dtype",
    "code_table",
    "decode",
    "dequantize_blocks",
    "encode",
    "fused_update",
    "quantize_blocks",
    "scales_shape",
    "stochastic_round",
    "update_leaf",
]
