"""How each primitive is written as LLVM text.

Lives here: one table keyed by primitive, and what it does not cover. Arithmetic is
that of IEEE 754, operation by operation: nothing is reordered or fused. May import:
compat, ir.kernel_block. Read next: `host_kernel.py`, which writes whole loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jzero.compat.jaxpr import JaxprEqn
from jzero.ir.kernel_block import Block, Value, is_computable

__all__ = ["why_not_covered", "write_equation"]

Rule = Callable[[Block, JaxprEqn, Sequence[Value]], Value]


def write_equation(block: Block, eqn: JaxprEqn, operands: Sequence[Value]) -> Value:
    """Appends an equation that `why_not_covered` has nothing against.

    Args:
      block: where to.
      eqn: the equation.
      operands: its operands, scalars repeated.
    """
    return _RULES[eqn.primitive.name](block, eqn, operands)


def why_not_covered(eqn: JaxprEqn) -> str | None:
    """Says what about an equation cannot be written; None if it can."""
    name = eqn.primitive.name
    dtypes = [str(v.aval.dtype) for v in (*eqn.invars, *eqn.outvars)]
    for dtype in dtypes:
        if not is_computable(dtype):
            return f"{name} of {dtype}"
    if name not in _RULES:
        return name
    is_float = Value("", dtypes[0]).is_float
    if name in _REAL and not is_float:
        return f"{name} of {dtypes[0]}"
    if name in _LOGICAL and is_float:
        return f"{name} of {dtypes[0]}"
    becomes_whole = name == "convert_element_type" and is_float
    if becomes_whole and not Value("", dtypes[-1]).is_float and dtypes[-1] != "bool":
        return f"{name} of {dtypes[0]} to {dtypes[-1]}"
    if name == "select_n" and (dtypes[0] != "bool" or len(eqn.invars) != 3):
        return f"{name} by {dtypes[0]}"
    return None


def _arithmetic(real: str, whole: str) -> Rule:
    def rule(block: Block, eqn: JaxprEqn, operands: Sequence[Value]) -> Value:
        a, b = operands
        return block.rounded(block.binary(real if a.is_float else whole, a, b))

    return rule


def _div(block: Block, eqn: JaxprEqn, operands: Sequence[Value]) -> Value:
    a, b = operands
    if not b.is_repeated:
        return block.rounded(block.binary("fdiv", a, b))
    # By one number for all, as XLA does it: a division takes ten times as long.
    inverse = block.binary("fdiv", block.constant(1, b.dtype), b)
    return block.rounded(block.binary("fmul", a, inverse))


def _comparison(real: str, signed: str, unsigned: str) -> Rule:
    def rule(block: Block, eqn: JaxprEqn, operands: Sequence[Value]) -> Value:
        a, b = operands
        whole = signed if a.is_signed else unsigned
        return block.compare(f"fcmp {real}" if a.is_float else f"icmp {whole}", a, b)

    return rule


def _logical(op: str) -> Rule:
    return lambda block, eqn, operands: block.binary(op, *operands)


def _larger(block: Block, a: Value, b: Value) -> Value:
    if a.is_float:
        return block.call("maximum", a, b)
    op = "icmp sgt" if a.is_signed else "icmp ugt"
    return block.select(block.compare(op, a, b), a, b)


def _smaller(block: Block, a: Value, b: Value) -> Value:
    if a.is_float:
        return block.call("minimum", a, b)
    op = "icmp slt" if a.is_signed else "icmp ult"
    return block.select(block.compare(op, a, b), a, b)


def _clamp(block: Block, eqn: JaxprEqn, operands: Sequence[Value]) -> Value:
    low, x, high = operands
    return _smaller(block, _larger(block, x, low), high)


def _neg(block: Block, eqn: JaxprEqn, operands: Sequence[Value]) -> Value:
    (a,) = operands
    if a.is_float:
        return Value(block.emit(f"fneg {block.type_of(a.dtype)} {a.name}"), a.dtype)
    return block.binary("sub", block.constant(0, a.dtype), a)


def _abs(block: Block, eqn: JaxprEqn, operands: Sequence[Value]) -> Value:
    return block.call("fabs", *operands)


def _sign(block: Block, eqn: JaxprEqn, operands: Sequence[Value]) -> Value:
    (a,) = operands
    # Zeros keep their sign, and what is no number stays so.
    is_kept = block.compare("fcmp ueq", a, block.constant(0, a.dtype))
    one = block.call("copysign", block.constant(1, a.dtype), a)
    return block.select(is_kept, a, one)


def _sqrt(block: Block, eqn: JaxprEqn, operands: Sequence[Value]) -> Value:
    return block.rounded(block.call("sqrt", *operands))


def _rsqrt(block: Block, eqn: JaxprEqn, operands: Sequence[Value]) -> Value:
    (a,) = operands
    root = block.call("sqrt", a)
    return block.rounded(block.binary("fdiv", block.constant(1, a.dtype), root))


def _times(block: Block, a: Value, b: Value) -> Value:
    return block.rounded(block.binary("fmul" if a.is_float else "mul", a, b))


def _square(block: Block, eqn: JaxprEqn, operands: Sequence[Value]) -> Value:
    return _times(block, operands[0], operands[0])


def _integer_pow(block: Block, eqn: JaxprEqn, operands: Sequence[Value]) -> Value:
    (a,) = operands
    exponent = eqn.params["y"]
    result, factor, left = None, a, abs(exponent)
    while left:
        if left & 1:
            result = factor if result is None else _times(block, result, factor)
        left >>= 1
        if left:
            factor = _times(block, factor, factor)
    one = block.constant(1, a.dtype)
    if result is None:
        return one
    if exponent < 0:
        result = block.rounded(block.binary("fdiv", one, result))
    return result


def _is_finite(block: Block, eqn: JaxprEqn, operands: Sequence[Value]) -> Value:
    size = block.call("fabs", operands[0])
    return block.compare("fcmp one", size, block.constant(float("inf"), size.dtype))


def _not(block: Block, eqn: JaxprEqn, operands: Sequence[Value]) -> Value:
    (a,) = operands
    ones = 1 if a.dtype == "bool" else 0
    if ones:
        return block.binary("xor", a, block.constant(True, a.dtype))
    zero = block.constant(0, a.dtype)
    return block.binary("xor", a, block.binary("sub", zero, block.constant(1, a.dtype)))


def _select(block: Block, eqn: JaxprEqn, operands: Sequence[Value]) -> Value:
    is_second, first, second = operands
    return block.select(is_second, second, first)


def _same(block: Block, eqn: JaxprEqn, operands: Sequence[Value]) -> Value:
    return operands[0]


def _convert(block: Block, eqn: JaxprEqn, operands: Sequence[Value]) -> Value:
    (a,) = operands
    dtype = str(eqn.outvars[0].aval.dtype)
    if dtype == a.dtype:
        return a
    target = Value("", dtype)
    if target.is_float:
        return block.rounded(_to_real(block, a, dtype))
    if dtype == "bool":
        zero = block.constant(0, a.dtype)
        return block.compare("fcmp une" if a.is_float else "icmp ne", a, zero)
    return _to_whole(block, a, target)


def _to_real(block: Block, a: Value, dtype: str) -> Value:
    if not a.is_float:
        return block.cast("sitofp" if a.is_signed else "uitofp", a, dtype)
    before, after = block.type_of(a.dtype), block.type_of(dtype)
    if before == after:
        return Value(a.name, dtype)
    return block.cast("fptrunc" if "double" in before else "fpext", a, dtype)


def _to_whole(block: Block, a: Value, target: Value) -> Value:
    sizes = [int(block.type_of(v.dtype).split("i")[-1][:-1]) for v in (a, target)]
    if sizes[0] == sizes[1]:
        return Value(a.name, target.dtype)
    if sizes[0] > sizes[1]:
        return block.cast("trunc", a, target.dtype)
    return block.cast("sext" if a.is_signed else "zext", a, target.dtype)


_RULES: dict[str, Rule] = {
    "abs": _abs,
    "add": _arithmetic("fadd", "add"),
    "add_any": _arithmetic("fadd", "add"),
    "and": _logical("and"),
    "clamp": _clamp,
    "convert_element_type": _convert,
    "copy": _same,
    "copy_p": _same,
    "div": _div,
    "eq": _comparison("oeq", "eq", "eq"),
    "ge": _comparison("oge", "sge", "uge"),
    "gt": _comparison("ogt", "sgt", "ugt"),
    "integer_pow": _integer_pow,
    "is_finite": _is_finite,
    "le": _comparison("ole", "sle", "ule"),
    "lt": _comparison("olt", "slt", "ult"),
    "max": lambda block, eqn, operands: _larger(block, *operands),
    "min": lambda block, eqn, operands: _smaller(block, *operands),
    "mul": _arithmetic("fmul", "mul"),
    "name": _same,
    "ne": _comparison("une", "ne", "ne"),
    "neg": _neg,
    "not": _not,
    "or": _logical("or"),
    "rsqrt": _rsqrt,
    "select_n": _select,
    "sign": _sign,
    "sqrt": _sqrt,
    "square": _square,
    "stop_gradient": _same,
    "sub": _arithmetic("fsub", "sub"),
    "xor": _logical("xor"),
}
# Of real numbers alone.
_REAL = frozenset({"abs", "div", "is_finite", "rsqrt", "sign", "sqrt"})
_LOGICAL = frozenset({"and", "not", "or", "xor"})
