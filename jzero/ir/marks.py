"""Forward analysis: which values are shards of the state, and how they lie.

Lives here: `Mark`, the placement of one value, and `Analysis.flow`, which
follows the marks of a jaxpr's inputs to its outputs, through element-wise
equations, rearrangements and bodies. Nothing is rewritten here. May import:
compat, ir.rules, ir.bodies. Read next: `demands.py`, the backward counterpart.

A mark also names its *root*: the variable of the same body from which the value
follows by casts alone. Two values with one root and one chain of casts are the
same array, so one gather serves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jzero.compat.jaxpr import AnyJaxpr, Atom, JaxprEqn, Var, inner, is_var
from jzero.ir.bodies import Body, Slot, bodies_of
from jzero.ir.partitioned import Shardwise, dims_of, read_shardwise
from jzero.ir.rules import (
    BARRIER,
    CAST,
    CONSTRAINT,
    IDENTITY,
    constrained_dims,
    is_array,
    is_elementwise,
    move_dims,
    moves_dims,
)
from jzero.ir.specs import Dims, stack, unstack


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The placement of a value that derives from a sharded state leaf.

    Attributes:
      dims: how the shard lies, one entry per dim.
      base: how the gathered value lies (the user's own axes).
      leaf: index of the state leaf it derives from (the first, if several).
      is_once: gather it once per step instead of at each use.
      root: variable of the same body whose cast chain this is.
      casts: dtype names of the chain from the root.
    """

    dims: Dims
    base: Dims
    leaf: int
    is_once: bool = False
    root: Var | None = None
    casts: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[Var | None, tuple[str, ...]]:
        """Equal keys within one body mean equal values."""
        return self.root, self.casts

    def rooted(self, var: Var) -> Mark:
        """Returns the mark of a value that is not a cast of another."""
        if self.root is var and not self.casts:
            return self
        return replace(self, root=var, casts=())

    def unrooted(self) -> Mark:
        """Returns the mark as it looks from outside the body."""
        if self.root is None and not self.casts:
            return self
        return replace(self, root=None, casts=())


Marks = tuple[Mark | None, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """Marks of every variable of one body.

    Attributes:
      marks: variable -> mark, for marked variables only.
      outs: a mark or None per output of the body. Its `root` is an input of the
        body of which the output is a chain of casts, or None.
    """

    marks: dict[Var, Mark]
    outs: Marks


def move_mark(mark: Mark, eqn: JaxprEqn) -> Mark | None:
    """Follows a mark through a rearranging equation."""
    dims, base = move_dims(eqn, mark.dims), move_dims(eqn, mark.base)
    if not dims or base is None:
        return None  # gathered, or reduced to a scalar
    if mark.dims != mark.base and dims == base:
        return None  # the sharded dim is gone
    return replace(mark, dims=dims, base=base)


def enter_marks(body: Body, operands: Sequence[Mark | None]) -> list[Mark | None]:
    """Returns the marks of a body's inputs, seen from inside."""
    marks: list[Mark | None] = []
    for slot in body.ins:
        mark = operands[slot.index]
        if mark is not None and slot.is_stacked:
            dims, base = unstack(mark.dims), unstack(mark.base)
            mark = (
                None
                if dims is None or base is None
                else replace(mark, dims=dims, base=base)
            )
        marks.append(None if mark is None else mark.unrooted())
    return marks


def leave_mark(mark: Mark | None, *, is_stacked: bool) -> Mark | None:
    """Returns the mark of a body's output, seen from outside."""
    if mark is None or not is_stacked:
        return mark
    return replace(mark, dims=stack(mark.dims), base=stack(mark.base))


def read_marks(eqn: JaxprEqn, marks: dict[Var, Mark]) -> list[Mark | None]:
    """Returns the mark of each operand of an equation."""
    return [marks.get(v) if is_var(v) else None for v in eqn.invars]


@dataclass(slots=True)
class Analysis:
    """Analyses of one traced step, each body analysed once per set of marks."""

    _flows: dict[tuple[int, Marks], Flow] = field(default_factory=dict)
    # Memo keys hold `id`s, so the jaxprs they stand for must stay alive.
    _alive: list[AnyJaxpr] = field(default_factory=list)

    def flow(self, jaxpr: AnyJaxpr, in_marks: Sequence[Mark | None]) -> Flow:
        """Follows input marks to every variable of a body.

        Args:
          jaxpr: the body.
          in_marks: a mark or None per input.

        Returns:
          The marks of all variables and outputs.
        """
        body = inner(jaxpr)
        key = (id(body), tuple(in_marks))
        if key not in self._flows:
            self._alive.append(body)
            self._flows[key] = self._compute_flow(body, in_marks)
        return self._flows[key]

    def _compute_flow(self, body: AnyJaxpr, in_marks: Sequence[Mark | None]) -> Flow:
        marks: dict[Var, Mark] = {
            v: m.rooted(v)
            for v, m in zip(body.invars, in_marks, strict=True)
            if m is not None
        }
        for eqn in body.eqns:
            operands = read_marks(eqn, marks)
            if operands.count(None) < len(operands):
                results = self.follow(eqn, operands)
                for var, mark in zip(eqn.outvars, results, strict=True):
                    if mark is not None:
                        marks[var] = mark if mark.root is not None else mark.rooted(var)
        inputs = set(body.invars)
        outs: list[Mark | None] = []
        for var in body.outvars:
            mark = marks.get(var) if is_var(var) else None
            if mark is not None and mark.root not in inputs:
                mark = mark.unrooted()
            outs.append(mark)
        return Flow(marks=marks, outs=tuple(outs))

    def follow(
        self, eqn: JaxprEqn, operands: Sequence[Mark | None]
    ) -> list[Mark | None]:
        """Returns the mark of each result; all None means: gather first."""
        nothing: list[Mark | None] = [None] * len(eqn.outvars)
        name = eqn.primitive.name
        if name == BARRIER:
            return [None if m is None else m.unrooted() for m in operands]
        if is_elementwise(eqn):
            return [_follow_elementwise(eqn, operands)]
        if moves_dims(eqn):
            first = operands[0]
            moved = None if first is None else move_mark(first, eqn)
            return nothing if moved is None else [moved.unrooted()]
        if bodies := bodies_of(eqn):
            return self._follow_bodies(eqn, bodies, operands)
        if shardwise := read_shardwise(eqn):
            return _follow_shardwise(eqn, shardwise, operands)
        return nothing

    def _follow_bodies(
        self,
        eqn: JaxprEqn,
        bodies: Sequence[Body],
        operands: Sequence[Mark | None],
    ) -> list[Mark | None]:
        operands = self.settle_carries(bodies, operands)
        # result -> its mark by each body, or how a constraint there places it
        found: list[list[Mark | Dims | None]] = [[] for _ in eqn.outvars]
        for body in bodies:
            outs = self.flow(body.jaxpr, enter_marks(body, operands)).outs
            placed = _placed_outputs(body.jaxpr)
            carried = {out for _, out in body.carries}
            for position, slot in enumerate(body.outs):
                if slot.index < 0:
                    continue
                mark = leave_mark(outs[position], is_stacked=slot.is_stacked)
                if mark is not None:
                    root = None if position in carried else mark.root
                    mark = _root_outside(mark, root, slot, body, operands)
                found[slot.index].append(mark or placed[position])
        return [_agreed(seen) for seen in found]

    def settle_carries(
        self, bodies: Sequence[Body], operands: Sequence[Mark | None]
    ) -> list[Mark | None]:
        """Drops the marks that a loop does not hand on from turn to turn.

        A carry is a shard inside only if it enters as one and each turn leaves
        it as one; otherwise it is gathered before the loop.
        """
        settled = list(operands)
        for body in bodies:
            is_stable = not body.carries
            while not is_stable:
                is_stable = True
                entered = enter_marks(body, settled)
                outs = self.flow(body.jaxpr, entered).outs
                for position, out in body.carries:
                    mark = entered[position]
                    if mark is not None and not same_placement(mark, outs[out]):
                        settled[body.ins[position].index] = None
                        is_stable = False
        return settled


def _root_outside(
    mark: Mark,
    root: Var | None,
    out: Slot,
    body: Body,
    operands: Sequence[Mark | None],
) -> Mark:
    """Returns the mark of a result as a chain of casts of an operand, if it is one.

    What a scan consumes and yields turn by turn is the same array outside.
    """
    invars = inner(body.jaxpr).invars
    for var, slot in zip(invars, body.ins, strict=True):
        operand = operands[slot.index]
        if var is root and slot.is_stacked == out.is_stacked and operand is not None:
            casts = (*operand.casts, *mark.casts)
            return replace(mark, root=operand.root, casts=casts)
    return mark.unrooted()


def _placed_outputs(jaxpr: AnyJaxpr) -> list[Dims | None]:
    """Returns the dims of each output that a sharding constraint made."""
    body = inner(jaxpr)
    made = {
        e.outvars[0]: constrained_dims(e)
        for e in body.eqns
        if e.primitive.name == CONSTRAINT
    }
    return [made.get(v) if is_var(v) else None for v in body.outvars]


def _agreed(seen: Sequence[Mark | Dims | None]) -> Mark | None:
    """The mark of a result that each branch gives; None if they disagree.

    A branch that derives its result from no state (zeros, say) agrees if the
    result has been placed like the shards of the other branches.
    """
    first = next((m for m in seen if isinstance(m, Mark)), None)
    if first is None:
        return None
    for other in seen:
        if isinstance(other, Mark):
            if not same_placement(first, other):
                return None
        elif other != first.dims:
            return None
    is_same = all(isinstance(m, Mark) and m.key == first.key for m in seen)
    return first if is_same else first.unrooted()


def same_placement(one: Mark | None, other: Mark | None) -> bool:
    """Says whether two marks describe shards that lie alike."""
    if one is None or other is None:
        return one is other
    return one.dims == other.dims and one.base == other.base


def _follow_elementwise(eqn: JaxprEqn, operands: Sequence[Mark | None]) -> Mark | None:
    first = next(m for m in operands if m is not None)
    if not is_array(eqn.outvars[0].aval):
        return None
    name = eqn.primitive.name
    if name == CAST:
        return replace(first, casts=(*first.casts, str(eqn.params["new_dtype"])))
    if name in IDENTITY:
        return first
    return first.unrooted()


def placed_names(
    shardwise: Shardwise, operands: Sequence[Mark | None]
) -> tuple[dict[str, object], dict[str, object]]:
    """Returns how marked operands place the named dims: as shards, and gathered."""
    marked = [
        (names, mark)
        for names, mark in zip(shardwise.operands, operands, strict=True)
        if mark is not None
    ]
    return (
        shardwise.place([(names, mark.dims) for names, mark in marked]),
        shardwise.place([(names, mark.base) for names, mark in marked]),
    )


def _follow_shardwise(
    eqn: JaxprEqn, shardwise: Shardwise, operands: Sequence[Mark | None]
) -> list[Mark | None]:
    """Marks results like the operands that they hang together with.

    A result follows from the first marked operand of its own names, shape and dtype
    that no result before it follows from: a new moment from the old one.
    """
    axes, base_axes = placed_names(shardwise, operands)
    taken: set[int] = set()
    found: list[Mark | None] = []
    for var, names in zip(eqn.outvars, shardwise.results, strict=True):
        dims, base = dims_of(names, axes), dims_of(names, base_axes)
        if dims is None or base is None:
            found.append(None)
            continue
        alike = [
            i
            for i, mark in enumerate(operands)
            if mark is not None and shardwise.operands[i] == names
        ]
        same = [i for i in alike if i not in taken and _is_same(eqn.invars[i], var)]
        source = operands[(same or alike)[0]] if alike else None
        taken.update(same[:1])
        if source is None:
            found.append(None)
        else:
            found.append(replace(source, dims=dims, base=base).unrooted())
    return found


def _is_same(atom: Atom, var: Var) -> bool:
    one, other = atom.aval, var.aval
    return one.shape == other.shape and one.dtype == other.dtype
