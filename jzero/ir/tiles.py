"""Cutting a sharded array into tiles that every device holds in one piece.

Lives here: `Tiling`, pure arithmetic on shapes, and how it cuts and fills arrays
inside a traced program. A sharded dim is split in two, (shards, rows of a shard), so
that a tile takes as many rows of every shard and no device sends anything. May import:
ir.specs. Read next: `jzero/passes/stream_loop.py`, which loops over the tiles.

Source of the idea of bounded pieces: `sub_group_size` of DeepSpeed's ZeRO-Infinity
(arXiv 2104.07857).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import jax
from jax import lax

from jzero.ir.specs import Dims

__all__ = ["Tiling", "plan_tiles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How arrays of one shape and placement are cut.

    Attributes:
      shape: the array's shape.
      view: the same array with each sharded dim split in two.
      tile: the shape of a tile of the view.
      local_elems: elements of a tile on one device.
    """

    shape: tuple[int, ...]
    view: tuple[int, ...]
    tile: tuple[int, ...]
    local_elems: int

    @property
    def num_tiles(self) -> int:
        """How many tiles the array has."""
        return prod(self.view) // prod(self.tile)

    def cut(self, viewed: jax.Array, number: jax.Array) -> jax.Array:
        """Returns one tile of a viewed array, by its number."""
        return lax.dynamic_slice(viewed, self._start(number), self.tile)

    def fill(self, viewed: jax.Array, tile: jax.Array, number: jax.Array) -> jax.Array:
        """Returns a viewed array with one tile replaced."""
        return lax.dynamic_update_slice(viewed, tile, self._start(number))

    def _start(self, number: jax.Array) -> list[jax.Array | int]:
        start: list[jax.Array | int] = []
        for size, part in zip(reversed(self.view), reversed(self.tile), strict=True):
            count = size // part
            start.append(0 if count == 1 else lax.rem(number, count) * part)
            number = number if count == 1 else lax.div(number, count)
        return start[::-1]


def plan_tiles(
    shape: tuple[int, ...],
    dims: Dims,
    axis_sizes: Mapping[str, int],
    *,
    max_local_elems: int,
) -> Tiling:
    """Cuts into tiles of at most so many elements on each device.

    Trailing dims stay whole as far as the bound allows, so that a tile is one run of
    memory; one dim is cut by the largest divisor that fits, and those before it down
    to single rows.

    Args:
      shape: the array's shape.
      dims: how it lies; sizes divide.
      axis_sizes: size of each mesh axis.
      max_local_elems: the bound; a tile has at least one element.

    Example:
      >>> tiling = plan_tiles(
      ...     (6, 16, 4), (None, "data", None), {"data": 8}, max_local_elems=8
      ... )
      >>> tiling.view, tiling.tile, tiling.num_tiles
      ((6, 8, 2, 4), (1, 8, 2, 4), 6)
    """
    view: list[int] = []
    is_spread: list[bool] = []
    for size, entry in zip(shape, dims, strict=True):
        names = entry if isinstance(entry, tuple) else (entry,)
        shards = prod(axis_sizes[n] for n in names if isinstance(n, str))
        if shards > 1:
            view.append(shards)
            is_spread.append(True)
        view.append(size // shards)
        is_spread.append(False)
    tile: list[int] = []
    local_elems = 1
    for size, spread in zip(reversed(view), reversed(is_spread), strict=True):
        if spread:
            tile.append(size)
            continue
        part = _largest_divisor(size, max_local_elems // local_elems)
        tile.append(part)
        local_elems *= part
        if part < size:
            max_local_elems = local_elems  # dims before it are cut to single rows
    return Tiling(
        shape=tuple(shape),
        view=tuple(view),
        tile=tuple(reversed(tile)),
        local_elems=local_elems,
    )


def _largest_divisor(size: int, bound: int) -> int:
    return next((d for d in range(min(size, bound), 1, -1) if size % d == 0), 1)
