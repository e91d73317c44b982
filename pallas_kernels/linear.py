"""Linear codes of 8 or 4 bits: plain values in, plain values out.

Lives here: rounding values to codes by the largest magnitude of their block, two
codes in a byte, and the way back. The reference and every kernel share it. May import:
jax alone. Read next: `quantize.py`.

```
8 bits   int8  -127..127           scale = largest magnitude / 127
4 bits   uint8, two of -7..7       scale = largest magnitude / 7
```
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp

__all__ = ["Bits", "from_codes", "pack", "to_codes", "to_scale", "unpack"]

Bits = Literal[4, 8]


def _top(bits: Bits) -> int:
    return 127 if bits == 8 else 7


def to_scale(largest: Any, bits: Bits) -> Any:
    """Returns the scale of a block whose largest magnitude is given.

    Example:
        >>> float(to_scale(jnp.float32(14.0), 4))
        2.0
    """
    # Multiplied: `largest / 127` need not be the float that times 127 gives it back.
    return largest * jnp.float32(1 / _top(bits))


def to_codes(values: Any, scales: Any, bits: Bits) -> Any:
    """Returns the nearest whole numbers of scales, int32.

    Args:
        values: float32.
        scales: float32, broadcast against them.
        bits: 8 or 4.
    """
    top = jnp.float32(_top(bits))
    is_there = scales > jnp.float32(0)
    # Multiplied, since compilers differ in whether they turn quotients into products.
    inverse = jnp.float32(1) / jnp.where(is_there, scales, jnp.float32(1))
    nearest = jax.lax.round(values * inverse, jax.lax.RoundingMethod.TO_NEAREST_EVEN)
    return jnp.minimum(jnp.maximum(nearest, -top), top).astype(jnp.int32)


def from_codes(codes: Any, scales: Any) -> Any:
    """Returns the values of codes, float32."""
    return codes.astype(jnp.float32) * scales


def pack(low: Any, high: Any) -> Any:
    """Puts two codes of 4 bits into each byte.

    Args:
        low: int32 in -7..7.
        high: The same, for the upper half.

    Returns:
        uint8.

    Example:
        >>> int(pack(jnp.int32(-1), jnp.int32(2)))
        47
    """
    both = (low & jnp.int32(15)) + (high & jnp.int32(15)) * jnp.int32(16)
    return both.astype(jnp.uint8)


def unpack(packed: Any) -> tuple[Any, Any]:
    """Undoes `pack`.

    Example:
        >>> [int(code) for code in unpack(jnp.uint8(47))]
        [-1, 2]
    """
    number = packed.astype(jnp.int32)
    low = number & jnp.int32(15)
    high = jax.lax.shift_right_logical(number, jnp.int32(4))
    return _signed(low), _signed(high)


def _signed(code: Any) -> Any:
    return jnp.where(code > 7, code - jnp.int32(16), code)
