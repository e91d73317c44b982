"""Dynamic 8-bit codes: eight bits over seven decades.

Lives here: the code tables by their definition, and encoding and decoding without a
table, as arithmetic that kernels can run. May import: jax alone. Read next:
`blocks.py`, which gives every block its scale.

A magnitude in [0, 1] is stored as a decade and a linear position inside it: the
decade that ends at 10^(i - 6), i = 0 to 6, holds 2^i values (signed) or 2^(i + 1)
(unsigned), the middles of equal parts of [0.1, 1]. 0 and 1 have codes of their own.

```
signed    byte  0 -> 0    +-1 -> 0.55e-6 (decade 0)   +-64..127 -> decade 6   -128 -> 1
unsigned  byte  0 -> 0    1, 2 -> decade 0            127..254 -> decade 6     255 -> 1
```

So the leading bit of the byte's magnitude (plus one, unsigned) tells the decade, and
the bits behind it the position. -1 has no code in the published table either; it
becomes the closest, -0.99297.

Source: Dettmers et al., 8-bit Optimizers via Block-wise Quantization, arXiv
2110.02861, section 1.2 and 2.2.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from pallas_kernels.rules import Sign

__all__ = ["code_dtype", "code_table", "decode", "encode"]

_NUM_DECADES = 7


def code_dtype(sign: Sign) -> Any:
    """Returns the dtype of codes: int8 or uint8.

    Example:
        >>> code_dtype("unsigned") is jnp.uint8
        True
    """
    return jnp.int8 if sign == "signed" else jnp.uint8


def _num_parts(decade: int, sign: Sign) -> int:
    return 2**decade if sign == "signed" else 2 ** (decade + 1)


def _end(decade: int) -> float:
    return 10.0 ** (decade - (_NUM_DECADES - 1))


def _value(decade: int, part: int, sign: Sign) -> float:
    return _end(decade) * (0.1 + 0.9 * (part + 0.5) / _num_parts(decade, sign))


def code_table(sign: Sign) -> tuple[float, ...]:
    """Returns the 256 values of the published table, in ascending order.

    Example:
        >>> len(code_table("signed")), code_table("unsigned")[-1]
        (256, 1.0)
    """
    middles = [
        _value(decade, part, sign)
        for decade in range(_NUM_DECADES)
        for part in range(_num_parts(decade, sign))
    ]
    mirrored = [-value for value in middles] if sign == "signed" else []
    return tuple(sorted([*mirrored, 0.0, *middles, 1.0]))


def decode(codes: Any, sign: Sign) -> Any:
    """Returns the values of codes, float32.

    Args:
        codes: int8 or uint8, any shape.
        sign: Which table.

    Example:
        >>> [round(float(v), 5) for v in decode(jnp.int8([-128, -127, 0]), "signed")]
        [1.0, -0.99297, 0.0]
    """
    is_signed = sign == "signed"
    number = codes.astype(jnp.int32)
    # From here on, 1 to 127 (or 255) with the decade in the leading bit.
    leading = jnp.abs(number) if is_signed else number + 1
    first = 0 if is_signed else 1
    end, step = jnp.float32(_end(0)), jnp.float32(0.9 / 2**first)
    start = jnp.int32(2**first)
    for decade in range(1, _NUM_DECADES):
        bit = 2 ** (decade + first)
        is_there = leading >= bit
        end = jnp.where(is_there, jnp.float32(_end(decade)), end)
        step = jnp.where(is_there, jnp.float32(0.9 / bit), step)
        start = jnp.where(is_there, jnp.int32(bit), start)
    part = (leading - start).astype(jnp.float32)
    value = end * (jnp.float32(0.1) + step * (part + jnp.float32(0.5)))
    one = -128 if is_signed else 255
    if is_signed:
        value = jnp.where(number < 0, -value, value)
    value = jnp.where(number == 0, jnp.float32(0), value)
    return jnp.where(number == one, jnp.float32(1), value)


def encode(values: Any, sign: Sign, *, has_zero: bool = True) -> Any:
    """Returns the code of the nearest value in the table.

    Args:
        values: float32 in [-1, 1], or [0, 1] for unsigned codes.
        sign: Which table.
        has_zero: Whether values above 0 may become 0. Without it they become the
            smallest code instead: what divides by a second moment wants no zeros.

    Example:
        >>> encode(jnp.float32([1.0, -1.0, 0.0, 1e-9]), "signed").tolist()
        [-128, -127, 0, 0]
        >>> encode(jnp.float32([1e-9]), "unsigned", has_zero=False).tolist()
        [1]
    """
    is_signed = sign == "signed"
    size = jnp.abs(values)
    first = 0 if is_signed else 1
    scale = jnp.float32(1 / _end(0))
    parts = jnp.float32(2**first)
    start = jnp.int32(2**first)
    for decade in range(1, _NUM_DECADES):
        bit = 2 ** (decade + first)
        last = _value(decade - 1, bit // 2 - 1, sign)
        is_there = size > jnp.float32((last + _value(decade, 0, sign)) / 2)
        scale = jnp.where(is_there, jnp.float32(1 / _end(decade)), scale)
        parts = jnp.where(is_there, jnp.float32(bit), parts)
        start = jnp.where(is_there, jnp.int32(bit), start)
    place = (size * scale - jnp.float32(0.1)) * (parts * jnp.float32(1 / 0.9))
    place = jnp.minimum(jnp.maximum(place, jnp.float32(0)), parts - jnp.float32(1))
    number = start + place.astype(jnp.int32)
    if not is_signed:
        number = number - 1
    least = jnp.float32(_value(0, 0, sign) / 2 if has_zero else 0.0)
    number = jnp.where(size > least, number, 0)
    top = _value(_NUM_DECADES - 1, _num_parts(_NUM_DECADES - 1, sign) - 1, sign)
    if is_signed:
        number = jnp.where(values < 0, -number, number)
        number = jnp.where(values > jnp.float32((1 + top) / 2), -128, number)
    else:
        number = jnp.where(values > jnp.float32((1 + top) / 2), 255, number)
    return number.astype(code_dtype(sign))
