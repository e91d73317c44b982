"""Mosaic GPU as one JAX release spells it: the only file that knows.

Lives here: layouts, loads and stores of blocks of four rows of 256, and the launch.
May import: jax alone. Read next: `mosaic_gpu.py`.

Pallas lowers to Mosaic GPU by `plgpu.kernel`. 0.10.2 has it, but lacks a square root
and an interpreter for it, so kernels need 0.12; the references run everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

__all__ = [
    "CHUNK_ROWS",
    "ROW_ELEMS",
    "check_version",
    "launch_in_place",
    "load_block",
    "load_scales",
    "position",
    "spread_max",
    "store_scales",
]

ROW_ELEMS = 256
CHUNK_ROWS = 4  # one row per warp of a warpgroup
_OLDEST = (0, 12)
_SHAPE = (CHUNK_ROWS, ROW_ELEMS)


def has_mosaic_gpu() -> bool:
    """Says whether this JAX can compile and interpret the kernels."""
    return jax.__version_info__[:2] >= _OLDEST


def check_version() -> None:
    """Raises unless this JAX can compile and interpret the kernels.

    Raises:
        NotImplementedError: It cannot.
    """
    if not has_mosaic_gpu():
        raise NotImplementedError(
            f"The GPU kernels need JAX {'.'.join(map(str, _OLDEST))}, and this is "
            f'{jax.__version__}.\nRemedy: use backend="xla", which computes the same.'
        )


def _layout() -> Any:
    """A warp holds a row; a lane holds four neighbours, twice: 16 bytes of float32."""
    return plgpu.Layout.TILED(
        plgpu.Tiling((_SHAPE, (128,), (4,))),
        warp_dims=(-4,),
        lane_dims=(-2,),
        vector_dim=-1,
    )


def load_block(ref: Any, rows: Any) -> Any:
    """Loads four rows of 256."""
    return plgpu.load(ref.at[rows], layout=_layout())


def _spread(per_row: Any) -> Any:
    wide = jax.lax.broadcast_in_dim(per_row, _SHAPE, (0,))
    return plgpu.layout_cast(wide, _layout())


def load_scales(ref: Any, rows: Any) -> Any:
    """Loads a number per row, spread over the row."""
    layout = _layout().reduce(1)
    return _spread(plgpu.load(ref.at[rows], layout=layout, optimized=False))


def store_scales(ref: Any, rows: Any, per_row: Any) -> None:
    """Stores a number per row."""
    plgpu.store(ref.at[rows], per_row, optimized=False)


def spread_max(block: Any) -> tuple[Any, Any]:
    """Returns the largest value of each row, and the same spread over the row."""
    per_row = jnp.max(block, axis=1)
    return per_row, _spread(per_row)


def position() -> Any:
    """Returns the index of each element in a block of four rows, uint32."""
    layout = _layout()
    row = plgpu.broadcasted_iota(jnp.uint32, _SHAPE, 0, layout=layout)
    column = plgpu.broadcasted_iota(jnp.uint32, _SHAPE, 1, layout=layout)
    return row * jnp.uint32(ROW_ELEMS) + column


def launch_in_place(
    body: Callable[..., None],
    inputs: Sequence[jax.Array],
    outputs: Sequence[jax.Array],
    *,
    num_chunks: int,
    interpret: bool,
) -> list[jax.Array]:
    """Runs a body once per chunk of four rows; it finds its chunk on axis "chunk".

    Args:
        body: Takes a reference per input and per output.
        inputs: What is only read.
        outputs: What is written where it lies, if the compiler may reuse its memory.
        num_chunks: How often the body runs.
        interpret: Run by the interpreter, on a CPU.

    Returns:
        The new values of the outputs.
    """
    kernel = plgpu.kernel(
        body,
        out_type=(),
        grid=(num_chunks,),
        grid_names=("chunk",),
        interpret=plgpu.InterpretGPUParams() if interpret else None,
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Lane
        ),
    )

    def on_references(refs: Sequence[Any]) -> None:
        kernel(*inputs, *refs)

    # Not `jax.new_ref`: its effect may not appear where shards are lowered.
    return list(pl.run_state(on_references)(list(outputs)))
