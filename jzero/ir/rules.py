"""What one equation does to the placement of its operands.

Lives here: one table keyed by primitive, with one default. *Transparent*
primitives compute on the shard and pass the placement on; anything else needs
the whole array. An unknown primitive falls under the default and is therefore
always right. May import: compat, ir.specs. Read next: `marks.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.core import ShapedArray

from jzero.compat.jaxpr import JaxprEqn
from jzero.ir.specs import Dims, permute, reshape_units, to_dims

ELEMENTWISE = frozenset(
    {
        "abs",
        "acos",
        "acosh",
        "add",
        "add_any",
        "and",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "bessel_i0e",
        "bessel_i1e",
        "bitcast_convert_type",
        "cbrt",
        "ceil",
        "clamp",
        "complex",
        "conj",
        "convert_element_type",
        "copy",
        "copy_p",
        "cos",
        "cosh",
        "digamma",
        "div",
        "eq",
        "erf",
        "erf_inv",
        "erfc",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "ge",
        "gt",
        "imag",
        "integer_pow",
        "is_finite",
        "le",
        "lgamma",
        "log",
        "log1p",
        "log2",
        "logistic",
        "lt",
        "max",
        "min",
        "mul",
        "name",
        "ne",
        "neg",
        "nextafter",
        "not",
        "one_minus_square",
        "or",
        "pow",
        "real",
        "reduce_precision",
        "rem",
        "round",
        "rsqrt",
        "select_n",
        "shift_left",
        "shift_right_arithmetic",
        "shift_right_logical",
        "sign",
        "sin",
        "sinh",
        "sqrt",
        "square",
        "stop_gradient",
        "sub",
        "tan",
        "tanh",
        "xor",
    }
)

# Value and dtype go through unchanged: the result is the same array.
IDENTITY = frozenset({"copy", "copy_p", "name", "stop_gradient"})

CAST = "convert_element_type"
BARRIER = "optimization_barrier"
CONSTRAINT = "sharding_constraint"


def _transpose(eqn: JaxprEqn, dims: Dims) -> Dims | None:
    return permute(dims, eqn.params["permutation"])


def _reshape(eqn: JaxprEqn, dims: Dims) -> Dims | None:
    if eqn.params.get("dimensions") is not None:
        return None
    return reshape_units(dims, eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape)


def _broadcast(eqn: JaxprEqn, dims: Dims) -> Dims | None:
    # Only where no element is repeated: a bias spread over a batch must not
    # make the batch look like a gradient of the same shape.
    aval = eqn.invars[0].aval
    if aval.size != eqn.outvars[0].aval.size:
        return None
    return reshape_units(dims, aval.shape, eqn.outvars[0].aval.shape)


def _window(eqn: JaxprEqn, dims: Dims, sizes: tuple[int, ...]) -> Dims | None:
    shape = eqn.invars[0].aval.shape
    cut = [i for i, (n, m) in enumerate(zip(shape, sizes, strict=True)) if n != m]
    return None if any(dims[i] is not None for i in cut) else dims


def _slice(eqn: JaxprEqn, dims: Dims) -> Dims | None:
    strides = eqn.params["strides"]
    if strides is not None and any(s != 1 for s in strides):
        return None
    return _window(eqn, dims, eqn.outvars[0].aval.shape)


def _dynamic_slice(eqn: JaxprEqn, dims: Dims) -> Dims | None:
    return _window(eqn, dims, eqn.params["slice_sizes"])


def _squeeze(eqn: JaxprEqn, dims: Dims) -> Dims | None:
    gone = eqn.params["dimensions"]
    if any(dims[i] is not None for i in gone):
        return None
    return tuple(d for i, d in enumerate(dims) if i not in gone)


def _reduce(eqn: JaxprEqn, dims: Dims) -> Dims | None:
    gone = eqn.params["axes"]
    return tuple(d for i, d in enumerate(dims) if i not in gone)


# Each follows the placement of operand 0 to the single result; the others of
# its operands (indices of a dynamic slice) are scalars.
_MOVES: dict[str, Callable[[JaxprEqn, Dims], Dims | None]] = {
    "transpose": _transpose,
    "reshape": _reshape,
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "squeeze": _squeeze,
    "reduce_sum": _reduce,
    "reduce_max": _reduce,
    "reduce_min": _reduce,
    "reduce_prod": _reduce,
    "reduce_and": _reduce,
    "reduce_or": _reduce,
}


_REDUCTIONS = frozenset(name for name in _MOVES if name.startswith("reduce_"))


def is_reduction(eqn: JaxprEqn) -> bool:
    """Says whether the equation reduces a shard where it lies.

    The partial results are combined by a collective of the result's size.
    """
    return eqn.primitive.name in _REDUCTIONS


def moves_dims(eqn: JaxprEqn) -> bool:
    """Says whether the equation may rearrange a shard without gathering it."""
    return eqn.primitive.name in _MOVES


def keeps_elements(eqn: JaxprEqn) -> bool:
    """Says whether the equation only rearranges a shard: every element stays."""
    if not moves_dims(eqn) or is_reduction(eqn):
        return False
    return eqn.invars[0].aval.size == eqn.outvars[0].aval.size


def move_dims(eqn: JaxprEqn, dims: Dims) -> Dims | None:
    """Follows dims through a rearranging equation; None if they cannot stay."""
    return _MOVES[eqn.primitive.name](eqn, dims)


def is_elementwise(eqn: JaxprEqn) -> bool:
    """Says whether each result element depends on the same element of operands.

    Operands must have the result's shape or be scalars.
    """
    if eqn.primitive.name not in ELEMENTWISE:
        return False
    shape = eqn.outvars[0].aval.shape
    # The most frequent question of all analyses: a loop takes half of `all(...)`.
    for operand in eqn.invars:
        other = operand.aval.shape
        if other and other != shape:
            return False
    return True


def constrained_dims(eqn: JaxprEqn) -> Dims | None:
    """Returns where a sharding constraint puts its operand, if on a named mesh."""
    spec = getattr(eqn.params["sharding"], "spec", None)
    return None if spec is None else to_dims(spec, len(eqn.outvars[0].aval.shape))


def is_array(aval: Any) -> bool:
    """Says whether an aval is an array with at least one dim, and no reference."""
    return isinstance(aval, ShapedArray) and bool(aval.shape)
