"""Mosaic GPU as one JAX release spells it: the only file that knows.

Lives here: layouts, loads and stores of four rows of 256 (or of half of each), and
the launch.
May import: jax alone. Read next: `mosaic_gpu.py`.

Pallas lowers to Mosaic GPU by `plgpu.kernel`. 0.10.2 has it, but no square root, no
store of one number per row (nor has 0.11.2), no way to write arrays in place where
shards are lowered, and no interpreter; so kernels need 0.12. The references run
everywhere.
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
    "load_half",
    "load_scales",
    "position",
    "spread_max",
    "store_half",
    "store_scales",
]

ROW_ELEMS = 256
CHUNK_ROWS = 4  # one row per warp of a warpgroup
_OLDEST = (0, 12)


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


def _layout(width: int = ROW_ELEMS) -> Any:
    """A warp holds a row; a lane holds four neighbours, twice: 16 bytes of float32.

    Of half a row a lane holds four neighbours once.
    """
    if width == ROW_ELEMS:
        tiles, warp_dim = ((CHUNK_ROWS, width), (width // 2,), (4,)), -4
    else:
        tiles, warp_dim = ((CHUNK_ROWS, width), (4,)), -3
    return plgpu.Layout.TILED(
        plgpu.Tiling(tiles), warp_dims=(warp_dim,), lane_dims=(-2,), vector_dim=-1
    )


def load_block(ref: Any, rows: Any) -> Any:
    """Loads four rows, all of each."""
    return plgpu.load(ref.at[rows], layout=_layout(ref.shape[1]))


def load_half(ref: Any, rows: Any, half: int) -> Any:
    """Loads the first (0) or the second half (1) of four rows of 256."""
    width = ROW_ELEMS // 2
    columns = pl.ds(half * width, width)
    return plgpu.load(ref.at[rows, columns], layout=_layout(width))


def store_half(ref: Any, rows: Any, half: int, values: Any) -> None:
    """Stores half of each of four rows."""
    width = ROW_ELEMS // 2
    ref[rows, pl.ds(half * width, width)] = values


def _spread(per_row: Any, width: int) -> Any:
    wide = jax.lax.broadcast_in_dim(per_row, (CHUNK_ROWS, width), (0,))
    return plgpu.layout_cast(wide, _layout(width))


def load_scales(ref: Any, rows: Any, width: int = ROW_ELEMS) -> Any:
    """Loads a number per row, spread over the row, or half of it."""
    layout = _layout(width).reduce(1)
    return _spread(plgpu.load(ref.at[rows], layout=layout, optimized=False), width)


def store_scales(ref: Any, rows: Any, per_row: Any) -> None:
    """Stores a number per row."""
    plgpu.store(ref.at[rows], per_row, optimized=False)


def spread_max(block: Any) -> tuple[Any, Any]:
    """Returns the largest value of each row, and the same spread over the row."""
    per_row = jnp.max(block, axis=1)
    return per_row, _spread(per_row, block.shape[1])


def position() -> Any:
    """Returns the index of each element in a block of four rows, uint32."""
    shape, layout = (CHUNK_ROWS, ROW_ELEMS), _layout()
    row = plgpu.broadcasted_iota(jnp.uint32, shape, 0, layout=layout)
    column = plgpu.broadcasted_iota(jnp.uint32, shape, 1, layout=layout)
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
