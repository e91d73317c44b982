"""Forward analysis: which dim of each value runs over the batch.

Lives here: `BatchDims.of`. Passes use it to say "these rows stay where they are"
about an activation. A primitive without a rule ends the trail, and a wrong trail
could only cost speed: the dims go into sharding constraints, never into
arithmetic. May import: compat, ir. Read next: `jzero/passes/spread_batch.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from jzero.compat.jaxpr import AnyJaxpr, JaxprEqn, Var, inner, is_var
from jzero.ir.bodies import Body, bodies_of
from jzero.ir.rules import BARRIER, CONSTRAINT, is_elementwise

OptionalDim = int | None


def _dot_general(eqn: JaxprEqn, dims: Sequence[OptionalDim]) -> OptionalDim:
    (contract_l, contract_r), (batch_l, batch_r) = eqn.params["dimension_numbers"]
    rank_l, rank_r = (len(v.aval.shape) for v in eqn.invars)
    free_l = [d for d in range(rank_l) if d not in contract_l and d not in batch_l]
    free_r = [d for d in range(rank_r) if d not in contract_r and d not in batch_r]
    sides = (
        (dims[0], [*batch_l, *free_l], 0),
        (dims[1], [*batch_r, *[None] * len(free_l), *free_r], 0),
    )
    for dim, order, _ in sides:
        if dim is not None and dim in order:
            return order.index(dim)
    return None


def _conv(eqn: JaxprEqn, dims: Sequence[OptionalDim]) -> OptionalDim:
    numbers = eqn.params["dimension_numbers"]
    if dims[0] == numbers.lhs_spec[0]:
        return numbers.out_spec[0]
    return None


def _gather(eqn: JaxprEqn, dims: Sequence[OptionalDim]) -> OptionalDim:
    # The rows of a lookup are those of its indices.
    offset = eqn.params["dimension_numbers"].offset_dims
    rows = [d for d in range(len(eqn.outvars[0].aval.shape)) if d not in offset]
    dim = dims[1]
    return rows[dim] if dim is not None and dim < len(rows) else None


def _reshape(eqn: JaxprEqn, dims: Sequence[OptionalDim]) -> OptionalDim:
    dim = dims[0]
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if dim is None:
        return None
    before = prod(old[:dim])
    for i, size in enumerate(new):
        if prod(new[:i]) == before and size > 1:
            is_major = size % old[dim] == 0 or old[dim] % size == 0
            return i if is_major else None
    return None


def _broadcast(eqn: JaxprEqn, dims: Sequence[OptionalDim]) -> OptionalDim:
    dim = dims[0]
    if dim is None:
        return None
    to = eqn.params["broadcast_dimensions"][dim]
    same = eqn.outvars[0].aval.shape[to] == eqn.invars[0].aval.shape[dim]
    return to if same else None


def _transpose(eqn: JaxprEqn, dims: Sequence[OptionalDim]) -> OptionalDim:
    dim = dims[0]
    return None if dim is None else eqn.params["permutation"].index(dim)


def _drop(name: str) -> Callable[[JaxprEqn, Sequence[OptionalDim]], OptionalDim]:
    def rule(eqn: JaxprEqn, dims: Sequence[OptionalDim]) -> OptionalDim:
        dim, gone = dims[0], eqn.params[name]
        if dim is None or dim in gone:
            return None
        return dim - sum(1 for d in gone if d < dim)

    return rule


def _same_size(eqn: JaxprEqn, dims: Sequence[OptionalDim]) -> OptionalDim:
    """For primitives that keep the rank: the dim stays if its size does."""
    out = eqn.outvars[0].aval.shape
    for atom, dim in zip(eqn.invars, dims, strict=True):
        shape = atom.aval.shape
        if dim is not None and len(shape) == len(out) and shape[dim] == out[dim]:
            return dim
    return None


_RULES: dict[str, Callable[[JaxprEqn, Sequence[OptionalDim]], OptionalDim]] = {
    "dot_general": _dot_general,
    "conv_general_dilated": _conv,
    "gather": _gather,
    "reshape": _reshape,
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "squeeze": _drop("dimensions"),
    "argmax": _drop("axes"),
    "argmin": _drop("axes"),
    **{
        f"reduce_{kind}": _drop("axes")
        for kind in ("sum", "max", "min", "prod", "and", "or")
    },
    **dict.fromkeys(
        (
            "concatenate",
            "cumsum",
            "cumprod",
            "cummax",
            "dynamic_slice",
            "dynamic_update_slice",
            "pad",
            "reduce_window_max",
            "reduce_window_sum",
            "rev",
            "scatter-add",
            "select_and_gather_add",
            "select_and_scatter_add",
            "slice",
            "sort",
            CONSTRAINT,
        ),
        _same_size,
    ),
}


@dataclass(slots=True)
class BatchDims:
    """Memoised batch dims of the variables of bodies."""

    _memo: dict[Any, dict[Var, int]] = field(default_factory=dict)
    _alive: list[AnyJaxpr] = field(default_factory=list)

    def of(self, jaxpr: AnyJaxpr, in_dims: Sequence[OptionalDim]) -> dict[Var, int]:
        """Follows the batch dims of inputs through a body.

        Args:
          jaxpr: the body.
          in_dims: per input, the dim that runs over the batch, or None.

        Returns:
          The batch dim of every variable that has one.
        """
        body = inner(jaxpr)
        key = (id(body), tuple(in_dims))
        if key not in self._memo:
            self._alive.append(body)
            self._memo[key] = self._compute(body, in_dims)
        return self._memo[key]

    def _compute(
        self, body: AnyJaxpr, in_dims: Sequence[OptionalDim]
    ) -> dict[Var, int]:
        found = {
            v: d for v, d in zip(body.invars, in_dims, strict=True) if d is not None
        }
        for eqn in body.eqns:
            dims = read_dims(eqn, found)
            if all(d is None for d in dims):
                continue
            for var, dim in zip(eqn.outvars, self._follow(eqn, dims), strict=True):
                if dim is not None:
                    found[var] = dim
        return found

    def _follow(
        self, eqn: JaxprEqn, dims: Sequence[OptionalDim]
    ) -> Sequence[OptionalDim]:
        if eqn.primitive.name == BARRIER:
            return dims
        if bodies := bodies_of(eqn):
            results: list[OptionalDim] = [None] * len(eqn.outvars)
            for body in bodies:
                entered = self.enter(body, dims)
                inside = self.of(body.jaxpr, entered)
                for slot, var in zip(body.outs, inner(body.jaxpr).outvars, strict=True):
                    dim = inside.get(var) if is_var(var) else None
                    if slot.index >= 0 and dim is not None:
                        results[slot.index] = dim + slot.is_stacked
            return results
        if is_elementwise(eqn):
            return [_same_size(eqn, dims)]
        rule = _RULES.get(eqn.primitive.name)
        if rule is None:
            return [None] * len(eqn.outvars)
        return [rule(eqn, dims)] * len(eqn.outvars)

    def enter(self, body: Body, operands: Sequence[OptionalDim]) -> list[OptionalDim]:
        """Returns the batch dims of a body's inputs.

        The rows of a stacked operand are those of one turn, even if the leading
        dim was cut from the batch. A carry is followed until it settles.
        """
        entered: list[OptionalDim] = []
        for slot in body.ins:
            dim = operands[slot.index]
            entered.append(
                max(dim - 1, 0) if dim is not None and slot.is_stacked else dim
            )
        outvars = inner(body.jaxpr).outvars
        for _ in range(len(body.carries) + 1):
            inside = self.of(body.jaxpr, entered)
            is_stable = True
            for position, out in body.carries:
                var = outvars[out]
                dim = inside.get(var) if is_var(var) else None
                if entered[position] is None and dim is not None:
                    # It starts as a constant and becomes rows: zeros, say.
                    entered[position] = dim
                    is_stable = False
            if is_stable:
                break
        return entered


def read_dims(eqn: JaxprEqn, found: dict[Var, int]) -> list[OptionalDim]:
    """Returns the batch dim of each operand of an equation."""
    return [found.get(v) if is_var(v) else None for v in eqn.invars]
