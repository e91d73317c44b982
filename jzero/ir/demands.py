"""Backward analysis: which values are wanted as shards, and where they are born.

Lives here: where a value that is not a shard meets a shard of the same shape in
element-wise arithmetic, it is a gradient or a linear image of one, and only its
shard is needed. `Demands` walks back from there (and from the outputs that must
be shards) through element-wise equations, casts and bodies to the equation that
produces the value: its birth. May import: compat, ir. Read next:
`jzero/passes/reduce.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jzero.compat.jaxpr import AnyJaxpr, DropVar, JaxprEqn, Var, inner, is_var
from jzero.ir.bodies import Body, bodies_of
from jzero.ir.marks import Analysis, Mark, enter_marks, placed_names, read_marks
from jzero.ir.partitioned import dims_of, read_shardwise
from jzero.ir.rules import BARRIER, is_array, is_elementwise
from jzero.ir.specs import Dims, inverse, permute, stack, unstack

OptionalDims = tuple[Dims | None, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Demands on the variables of one body.

    Attributes:
      dims: variable -> how its shard must lie.
      ins: per input of the body, how its shard is wanted, or None.
    """

    dims: dict[Var, Dims]
    ins: OptionalDims


@dataclass(slots=True)
class Demands:
    """Backward analysis over a finished forward `Analysis`."""

    analysis: Analysis
    _memo: dict[tuple[int, tuple[Mark | None, ...], OptionalDims], Wanted] = field(
        default_factory=dict
    )

    def of(
        self,
        jaxpr: AnyJaxpr,
        in_marks: Sequence[Mark | None],
        out_dims: Sequence[Dims | None],
    ) -> Wanted:
        """Finds what one body wants of its variables.

        Args:
          jaxpr: the body.
          in_marks: forward marks of its inputs.
          out_dims: per output, how its shard is wanted outside, or None.

        Returns:
          The demands on variables and inputs.
        """
        body = inner(jaxpr)
        marks = self.analysis.flow(jaxpr, in_marks).marks
        unrooted = tuple(None if m is None else m.unrooted() for m in in_marks)
        key = (id(body), unrooted, tuple(out_dims))
        if key not in self._memo:
            self._memo[key] = self._compute(body, marks, out_dims)
        return self._memo[key]

    def _compute(
        self,
        body: AnyJaxpr,
        marks: dict[Var, Mark],
        out_dims: Sequence[Dims | None],
    ) -> Wanted:
        wanted: dict[Var, Dims] = {}

        def want(atom: Any, dims: Dims | None) -> None:
            if dims is None or not isinstance(atom, Var) or atom in marks:
                return
            if isinstance(atom, DropVar) or not is_array(atom.aval):
                return
            if len(dims) == len(atom.aval.shape):
                wanted.setdefault(atom, dims)

        for atom, dims in zip(body.outvars, out_dims, strict=True):
            want(atom, dims)
        for eqn in body.eqns:
            for atom, dims in _meetings(eqn, marks):
                want(atom, dims)
        for eqn in reversed(body.eqns):
            for atom, dims in self._through(eqn, marks, wanted):
                want(atom, dims)
        ins = tuple(wanted.get(v) for v in body.invars)
        return Wanted(dims=wanted, ins=ins)

    def _through(
        self, eqn: JaxprEqn, marks: dict[Var, Mark], wanted: dict[Var, Dims]
    ) -> list[tuple[object, Dims]]:
        """Lists the demands that an equation passes on to its operands."""
        outs = [wanted.get(v) for v in eqn.outvars]
        has_demand = any(d is not None for d in outs)
        name = eqn.primitive.name
        if name == BARRIER:
            pairs = zip(eqn.invars, outs, strict=True)
            return [(v, d) for v, d in pairs if d is not None]
        if bodies := bodies_of(eqn):
            operands = read_marks(eqn, marks)
            if not has_demand and all(m is None for m in operands):
                return []
            ins = self.enter(eqn, bodies, operands, outs).operands
            return [
                (v, d) for v, d in zip(eqn.invars, ins, strict=True) if d is not None
            ]
        if has_demand and (shardwise := read_shardwise(eqn)):
            placed = zip(shardwise.results, outs, strict=True)
            axes = shardwise.place([(n, d) for n, d in placed if d is not None])
            return [
                (atom, dims)
                for atom, names in zip(eqn.invars, shardwise.operands, strict=True)
                if (dims := dims_of(names, axes)) is not None
            ]
        first = outs[0] if outs else None
        if first is None:
            return []
        if name == "transpose":
            back = permute(first, inverse(eqn.params["permutation"]))
            return [(eqn.invars[0], back)]
        if is_elementwise(eqn):
            out = eqn.outvars[0]
            return [(v, first) for v in eqn.invars if same_shape(v, out)]
        return []

    def enter(
        self,
        eqn: JaxprEqn,
        bodies: Sequence[Body],
        operands: Sequence[Mark | None],
        outs: Sequence[Dims | None],
    ) -> Entered:
        """Carries demands into the bodies of an equation and out to its operands.

        Loop carries are followed until they settle: a gradient accumulator that
        is wanted as a shard after the loop is one in every turn, and before it.
        """
        operands = self.analysis.settle_carries(bodies, operands)
        result_dims = list(outs)
        operand_dims: list[Dims | None] = [None] * len(eqn.invars)
        inner_outs: list[OptionalDims] = []
        for body in bodies:
            marks = enter_marks(body, operands)
            out_dims = _enter_outs(body, result_dims)
            while True:
                found = self.of(body.jaxpr, marks, out_dims)
                grown = list(out_dims)
                for position, out in body.carries:
                    if marks[position] is not None:
                        continue
                    if grown[out] is None:
                        grown[out] = found.ins[position]
                if tuple(grown) == tuple(out_dims):
                    break
                out_dims = tuple(grown)
            for position, out in body.carries:
                # Also carries that only the result side asked for.
                dims = out_dims[out]
                slot = body.ins[position]
                if dims is not None and marks[position] is None:
                    operand_dims[slot.index] = operand_dims[slot.index] or dims
            for slot, dims in zip(body.ins, found.ins, strict=True):
                seen = stack(dims) if dims is not None and slot.is_stacked else dims
                if seen is not None and operand_dims[slot.index] is None:
                    operand_dims[slot.index] = seen
            inner_outs.append(tuple(out_dims))
        return Entered(
            marks=tuple(operands),
            operands=tuple(operand_dims),
            out_dims=tuple(inner_outs),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """Demands around the bodies of one equation.

    Attributes:
      marks: settled forward marks of the operands.
      operands: per operand, how its shard is wanted.
      out_dims: per body, the demands on its outputs.
    """

    marks: tuple[Mark | None, ...]
    operands: OptionalDims
    out_dims: tuple[OptionalDims, ...]


def _enter_outs(body: Body, outs: Sequence[Dims | None]) -> OptionalDims:
    dims: list[Dims | None] = []
    for slot in body.outs:
        wanted = outs[slot.index] if slot.index >= 0 else None
        if wanted is not None and slot.is_stacked:
            wanted = unstack(wanted)
        dims.append(wanted)
    return tuple(dims)


def _meetings(eqn: JaxprEqn, marks: dict[Var, Mark]) -> list[tuple[Any, Dims | None]]:
    """Lists the operands that meet a shard, and how that lies."""
    dims = meeting_dims(eqn, marks)
    if dims is None:
        return []
    if is_elementwise(eqn):
        return [(v, dims) for v in eqn.invars if same_shape(v, eqn.outvars[0])]
    if shardwise := read_shardwise(eqn):
        axes, _ = placed_names(shardwise, read_marks(eqn, marks))
        pairs = zip(eqn.invars, shardwise.operands, strict=True)
        return [(atom, dims_of(names, axes)) for atom, names in pairs]
    return []


def meeting_dims(eqn: JaxprEqn, marks: dict[Var, Mark]) -> Dims | None:
    """How shards lie in an element-wise equation that has one among its operands."""
    for atom in eqn.invars:
        if is_var(atom) and atom in marks:
            return marks[atom].dims
    return None


def same_shape(atom: object, out: Var) -> bool:
    """Says whether an operand has the shape of the result."""
    aval = getattr(atom, "aval", None)
    return aval is not None and getattr(aval, "shape", None) == out.aval.shape
