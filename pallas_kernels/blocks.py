"""Blocks of one scale each, cut so that no block lies across two shards.

Lives here: which tile of an array is one block, and quantizing moments block by
block. Codes keep the shape of the array; scales have its rank, each dim divided by
the tile's, so both are sharded the way the array is. May import: `codes.py`. Read
next: `update.py`.

```
array (1024, 16, 64)   tile (1, 4, 64)   scales (1024, 4, 1)
array (1024, 4096)     tile (1, 256)     scales (1024, 16)
```
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax.numpy as jnp

from pallas_kernels.codes import decode, encode
from pallas_kernels.rules import Sign

__all__ = [
    "BLOCK_ELEMS",
    "choose_tile",
    "dequantize_moment",
    "quantize_moment",
    "scales_shape",
    "spread",
    "to_blocks",
]

BLOCK_ELEMS = 256
# With fewer elements the scales of two moments weigh more than 0.1 bytes per element.
MIN_BLOCK_ELEMS = 96

# Below this a block counts as zero: a quotient by a subnormal number is not safe.
_TINY = 1e-36
# Far below the smallest code.
_LEAST = 1e-12


def choose_tile(shape: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the tile of up to 256 elements that is one block.

    As many of the trailing dims as fit whole, then a divisor of the next: the
    leading dims, which are the ones to be sharded, are cut as little as possible.

    Args:
        shape: The shape of the array.

    Returns:
        One length per dim, each a divisor of the dim; None if no such tile has at
        least 96 elements.

    Example:
        >>> choose_tile((1024, 4096)), choose_tile((768, 50257)), choose_tile((7,))
        ((1, 256), (8, 29), None)
    """
    if not prod(shape):
        return None
    room, tile = BLOCK_ELEMS, []
    for length in reversed(shape):
        side = max(n for n in range(1, min(room, length) + 1) if length % n == 0)
        room //= side
        tile.append(side)
    found = tuple(reversed(tile))
    return found if prod(found) >= MIN_BLOCK_ELEMS else None


def scales_shape(shape: Sequence[int], tile: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of the scales.

    Example:
        >>> scales_shape((1024, 16, 64), (1, 4, 64))
        (1024, 4, 1)
    """
    return tuple(length // side for length, side in zip(shape, tile, strict=True))


def to_blocks(array: Any, tile: Sequence[int]) -> Any:
    """Splits each dim into (number of tiles, tile)."""
    split = [n for pair in zip(array.shape, tile, strict=True) for n in pair]
    split[::2] = [n // t for n, t in zip(array.shape, tile, strict=True)]
    return array.reshape(split)


def spread(scales: Any) -> Any:
    """Gives scales the rank of blocks, to be broadcast over them."""
    return scales.reshape([n for length in scales.shape for n in (length, 1)])


def dequantize_moment(codes: Any, scales: Any, sign: Sign) -> Any:
    """Returns float32 values; `codes` and `scales` must broadcast."""
    return decode(codes, sign) * scales


def quantize_moment(values: Any, scales: Any, sign: Sign) -> Any:
    """Returns codes, given the largest magnitude of each block as its scale.

    A second moment (unsigned) that is not zero never becomes zero: the update divides
    by its root.
    """
    is_there = scales > jnp.float32(_TINY)
    ratio = values / jnp.where(is_there, scales, jnp.float32(1))
    if sign == "unsigned":  # a quotient that underflows is still not zero
        least = jnp.where(values > 0, jnp.float32(_LEAST), jnp.float32(0))
        ratio = jnp.maximum(ratio, least)
    ratio = jnp.where(is_there, ratio, jnp.float32(0))
    return encode(ratio, sign, has_zero=sign == "signed")
