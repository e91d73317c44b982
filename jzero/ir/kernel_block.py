"""LLVM text that computes on a few neighbouring elements at once.

Lives here: `Block`, a run of instructions on vectors, and how elements of each dtype
are loaded, rounded and stored. May import: nothing of jzero. Read next:
`kernel_rules.py`, which writes arithmetic with it.

16-bit floats are computed in float32 and rounded after each operation, which is what
their own arithmetic would give: float32 has more than twice their digits.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

__all__ = ["Block", "Value", "is_computable"]

# dtype -> type that it is computed in. Signed and unsigned look alike in LLVM.
_COMPUTED = {
    "bool": "i1",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "i8",
    "uint16": "i16",
    "uint32": "i32",
    "uint64": "i64",
    "bfloat16": "float",
    "float16": "float",
    "float32": "float",
    "float64": "double",
}
# dtype -> type in memory, where it differs.
_STORED = {"bool": "i8", "bfloat16": "i16", "float16": "half"}
_LINE_BYTES = 64
# How far ahead of the block memory is fetched: measured, on one Xeon, to gain a fifth
# over what the processor fetches by itself; half and twice as far gain less.
_AHEAD_BYTES = 1024
_SUFFIX = {"float": "f32", "double": "f64"}


def is_computable(dtype: Any) -> bool:
    """Says whether blocks know a dtype."""
    return str(dtype) in _COMPUTED


@dataclass(frozen=True, slots=True)
class Value:
    """A vector of elements.

    Attributes:
      name: how LLVM text refers to it; a constant is written out.
      dtype: of an element, as JAX names it.
      is_repeated: whether all elements are the same scalar.
    """

    name: str
    dtype: str
    is_repeated: bool = False

    @property
    def is_float(self) -> bool:
        """Whether the elements are real numbers."""
        return _COMPUTED[self.dtype] in _SUFFIX

    @property
    def is_signed(self) -> bool:
        """Whether the elements are integers that can be negative."""
        return self.dtype.startswith("int")


@dataclass(slots=True)
class Block:
    """Instructions on vectors of neighbouring elements.

    Attributes:
      lanes: elements of a vector.
      prefix: what all its names begin with.
      lines: the instructions.
      intrinsics: declarations of what they call.
    """

    lanes: int
    prefix: str
    lines: list[str] = field(default_factory=list)
    intrinsics: set[str] = field(default_factory=set)

    # --- instructions

    def emit(self, instruction: str) -> str:
        """Appends an instruction and returns the name of its result."""
        name = f"%{self.prefix}{len(self.lines)}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def vector(self, element: str) -> str:
        """Returns the type of a vector, of elements of an LLVM type."""
        return f"<{self.lanes} x {element}>"

    def type_of(self, dtype: str) -> str:
        """Returns the type that vectors of a dtype are computed in."""
        return self.vector(_COMPUTED[dtype])

    def binary(self, op: str, a: Value, b: Value) -> Value:
        """Appends an operation on vectors of one type; the result is not rounded."""
        return Value(
            self.emit(f"{op} {self.type_of(a.dtype)} {a.name}, {b.name}"), a.dtype
        )

    def compare(self, op: str, a: Value, b: Value) -> Value:
        """Appends a comparison, such as `fcmp olt`."""
        return Value(
            self.emit(f"{op} {self.type_of(a.dtype)} {a.name}, {b.name}"), "bool"
        )

    def select(self, is_one: Value, one: Value, other: Value) -> Value:
        """Appends a choice between two vectors, element by element."""
        kind = self.type_of(one.dtype)
        mask = self.type_of("bool")
        return Value(
            self.emit(
                f"select {mask} {is_one.name}, {kind} {one.name}, {kind} {other.name}"
            ),
            one.dtype,
        )

    def call(self, intrinsic: str, *args: Value) -> Value:
        """Appends an intrinsic function of vectors of real numbers."""
        dtype = args[0].dtype
        kind = self.type_of(dtype)
        suffix = _SUFFIX[_COMPUTED[dtype]]
        name = f"@llvm.{intrinsic}.v{self.lanes}{suffix}"
        self.intrinsics.add(f"declare {kind} {name}({', '.join([kind] * len(args))})")
        given = ", ".join(f"{kind} {arg.name}" for arg in args)
        return Value(self.emit(f"call {kind} {name}({given})"), dtype)

    def cast(self, op: str, a: Value, dtype: str) -> Value:
        """Appends a conversion, such as `sitofp`; the result is not rounded."""
        to = self.type_of(dtype)
        return Value(self.emit(f"{op} {self.type_of(a.dtype)} {a.name} to {to}"), dtype)

    def stored_type(self, dtype: str) -> str:
        """Returns the type of an element in memory."""
        return _STORED.get(dtype, _COMPUTED[dtype])

    # --- constants, rounding

    def constant(self, number: Any, dtype: str) -> Value:
        """Returns one number for all elements."""
        kind = _COMPUTED[dtype]
        rounded = np.asarray(number).astype(jnp.dtype(dtype)).item()
        if kind in _SUFFIX:
            bits = struct.unpack("<Q", struct.pack("<d", float(rounded)))[0]
            text = f"{kind} 0x{bits:016X}"
        else:
            text = f"{kind} {int(rounded)}"
        many = f"<{', '.join([text] * self.lanes)}>"
        return Value(many, dtype, is_repeated=True)

    def rounded(self, a: Value) -> Value:
        """Returns a result as its dtype can hold it, to nearest, ties to even."""
        if a.dtype == "float16":
            half, full = self.vector("half"), self.vector("float")
            narrow = self.emit(f"fptrunc {full} {a.name} to {half}")
            return Value(self.emit(f"fpext {half} {narrow} to {full}"), a.dtype)
        if a.dtype == "bfloat16":
            return self._rounded_bfloat16(a)
        return a

    def _rounded_bfloat16(self, a: Value) -> Value:
        full = self.vector("float")
        bits = Value(
            self.emit(f"bitcast {full} {a.name} to {self.vector('i32')}"), "uint32"
        )
        odd = self.binary("lshr", bits, self.constant(16, "uint32"))
        odd = self.binary("and", odd, self.constant(1, "uint32"))
        up = self.binary("add", bits, self.constant(0x7FFF, "uint32"))
        up = self.binary("add", up, odd)
        # A NaN whose digits are all among those that go would become infinite.
        quiet = self.binary("or", bits, self.constant(0x400000, "uint32"))
        is_nan = self.compare("fcmp uno", a, a)
        kept = self.select(is_nan, quiet, up)
        kept = self.binary("and", kept, self.constant(0xFFFF0000, "uint32"))
        name = self.emit(f"bitcast {self.vector('i32')} {kept.name} to {full}")
        return Value(name, a.dtype)

    # --- memory

    def load(self, pointer: str, index: str, dtype: str) -> Value:
        """Appends the reading of neighbours, from an index on."""
        kind = self.stored_type(dtype)
        at = self.emit(f"getelementptr {kind}, ptr {pointer}, i64 {index}")
        size = jnp.dtype(dtype).itemsize
        name = self.emit(f"load {self.vector(kind)}, ptr {at}, align {size}")
        return self._widened(name, dtype)

    def spread(self, scalar: str, dtype: str) -> Value:
        """Appends the repetition of a scalar, which is given as it lies in memory."""
        kind = self.stored_type(dtype)
        many = self.vector(kind)
        first = self.emit(f"insertelement {many} poison, {kind} {scalar}, i32 0")
        zeros = f"{self.vector('i32')} zeroinitializer"
        name = self.emit(f"shufflevector {many} {first}, {many} poison, {zeros}")
        return replace(self._widened(name, dtype), is_repeated=True)

    def prefetch(
        self, pointer: str, index: str, dtype: str, *, is_written: bool
    ) -> None:
        """Appends a hint to fetch what will be read a little later.

        Args:
          pointer: of the array.
          index: where the block is now.
          dtype: of its elements.
          is_written: whether results will be written in its place.
        """
        self.intrinsics.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        kind = self.stored_type(dtype)
        here = self.emit(f"getelementptr {kind}, ptr {pointer}, i64 {index}")
        num_bytes = self.lanes * jnp.dtype(dtype).itemsize
        for start in range(0, num_bytes, _LINE_BYTES):
            ahead = _AHEAD_BYTES + start
            line = self.emit(f"getelementptr i8, ptr {here}, i64 {ahead}")
            hint = f"i32 {int(is_written)}, i32 3, i32 1"
            self.lines.append(f"  call void @llvm.prefetch.p0(ptr {line}, {hint})")

    def _widened(self, name: str, dtype: str) -> Value:
        """Elements as they lie in memory -> as they are computed with."""
        if dtype == "bool":
            byte = f"{self.vector('i8')} {name}, zeroinitializer"
            name = self.emit(f"icmp ne {byte}")
        elif dtype == "float16":
            name = self.emit(
                f"fpext {self.vector('half')} {name} to {self.vector('float')}"
            )
        elif dtype == "bfloat16":
            wide = self.vector("i32")
            name = self.emit(f"zext {self.vector('i16')} {name} to {wide}")
            name = self.emit(f"shl {wide} {name}, {self.constant(16, 'uint32').name}")
            name = self.emit(f"bitcast {wide} {name} to {self.vector('float')}")
        return Value(name, dtype)

    def store(self, value: Value, pointer: str, index: str) -> None:
        """Appends the writing of neighbours, from an index on."""
        name, dtype = value.name, value.dtype
        kind = self.stored_type(dtype)
        if dtype == "bool":
            name = self.emit(f"zext {self.vector('i1')} {name} to {self.vector('i8')}")
        elif dtype == "float16":
            full = self.vector("float")
            name = self.emit(f"fptrunc {full} {name} to {self.vector('half')}")
        elif dtype == "bfloat16":
            wide = self.vector("i32")
            name = self.emit(f"bitcast {self.vector('float')} {name} to {wide}")
            name = self.emit(f"lshr {wide} {name}, {self.constant(16, 'uint32').name}")
            name = self.emit(f"trunc {wide} {name} to {self.vector('i16')}")
        at = self.emit(f"getelementptr {kind}, ptr {pointer}, i64 {index}")
        size = jnp.dtype(dtype).itemsize
        many = self.vector(kind)
        self.lines.append(f"  store {many} {name}, ptr {at}, align {size}")
