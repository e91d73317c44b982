"""Shapes as compiled HLO text spells them, and their bytes.

Lives here: `ArrayShape` and the reader of shape texts such as
`(f32[8,4]{1,0:T(8,128)S(5)}, /*index=1*/s4[6]{0:E(4)})`. May import: nothing of
jzero. Read next: `hlo.py`, which finds the shape texts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

__all__ = ["ArrayShape", "read_shapes"]

# Bits one element takes where the layout does not say otherwise. Types narrower
# than a byte take a whole one unless the layout packs them: `s4[6]{0:E(4)}`.
_BITS = {
    "pred": 8,
    "bf16": 16,
    "f16": 16,
    "f32": 32,
    "f64": 64,
    "c64": 64,
    "c128": 128,
    "token": 0,
    "opaque": 0,
}
_SHAPE = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\](?:\{([^}]*)\})?")
_WIDTH = re.compile(r"[a-z]+(\d+)")
_PACKED = re.compile(r"E\((\d+)\)")
_SPACE = re.compile(r"S\((\d+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayShape:
    """One array of a compiled program, on one device.

    Attributes:
        dtype: As HLO spells it: "f32", "bf16", "s8", "f8e4m3fn", "pred".
        dims: The lengths of its dimensions. A bounded dynamic one has its bound.
        memory_space: 0 is device memory, 5 is the host's on GPUs and TPUs.
        elem_bits: Bits that one element takes in memory.
    """

    dtype: str
    dims: tuple[int, ...] = ()
    memory_space: int = 0
    elem_bits: int = 32

    @property
    def num_elems(self) -> int:
        """How many elements the array has."""
        return math.prod(self.dims)

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements, without what tiling pads."""
        return -(-self.num_elems * self.elem_bits // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


def read_shapes(text: str) -> tuple[ArrayShape, ...]:
    """Returns the arrays that a shape text names, nested tuples flattened.

    Args:
        text: A shape of HLO text; layouts, memory spaces and comments may occur.

    Returns:
        The arrays in order. Tokens are arrays of zero bytes.

    Raises:
        ValueError: A dtype whose width the text does not tell.

    Example:
        >>> shapes = read_shapes("((bf16[8,4]{1,0}), s4[6]{0:E(4)S(5)})")
        >>> [(str(s), s.num_bytes, s.memory_space) for s in shapes]
        [('bf16[8,4]', 64, 0), ('s4[6]', 3, 5)]
    """
    return tuple(
        ArrayShape(
            dtype=dtype,
            dims=tuple(int(d.lstrip("<=")) for d in dims.split(",") if d.strip("<= ")),
            memory_space=int(space[1]) if (space := _SPACE.search(layout)) else 0,
            elem_bits=int(packed[1])
            if (packed := _PACKED.search(layout))
            else _elem_bits(dtype),
        )
        for dtype, dims, layout in _SHAPE.findall(text)
    )


def _elem_bits(dtype: str) -> int:
    bits = _BITS.get(dtype)
    if bits is not None:
        return bits
    width = _WIDTH.match(dtype)  # s32, u4, f8e4m3fn, f4e2m1fn
    if width is None:
        raise ValueError(f"The HLO text has an element type {dtype!r} of unknown size.")
    return max(8, int(width[1]))
