"""Which arithmetic can follow offloaded leaves through the device, piece by piece.

Lives here: `find_streams`. A *stream* is a connected piece of element-wise arithmetic
on offloaded leaves of one shape: the cast of a weight, the update of a parameter. All
that it needs of a leaf is the part that is being worked on. May import: compat, ir.
Read next: `tiles.py`, which cuts leaves, and `jzero/passes/offload.py`.

Streams have levels. What another stream's results go through (a matrix product, the
norm of all updates) before they come back to a stream lies on a higher level, so a
stream of a lower level never waits for one of a higher or of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jzero.compat.jaxpr import AnyJaxpr, Atom, DropVar, JaxprEqn, Var, inner, is_var
from jzero.ir.rules import BARRIER, is_elementwise

__all__ = ["Stream", "Streams", "done_reading", "find_streams"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One connected piece of element-wise arithmetic on offloaded leaves.

    Attributes:
      eqns: indices of its equations, in order.
      leaves: the offloaded values that it reads.
      operands: what else it reads: arrays of the same shape, and scalars.
      outs: its results that something else reads, or that leave the body.
      level: see the module.
      ready: index of the last equation that must have run before it, or -1.
    """

    eqns: tuple[int, ...]
    leaves: tuple[Var, ...]
    operands: tuple[Var, ...]
    outs: tuple[Var, ...]
    level: int
    ready: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """The streams of one body.

    Attributes:
      all: by level, and by when they can start.
      levels: variable -> the level of what may follow from it; only of what follows
        from a stream.
      aliases: result of a barrier -> the offloaded value that it is.
      members: index of an equation -> the stream it belongs to.
      made_at: variable -> index of the equation that makes it.
      readers: variable -> indices of the equations that read it; their number stands
        for what the body returns.
    """

    all: tuple[Stream, ...]
    levels: dict[Var, int]
    aliases: dict[Var, Var]
    members: dict[int, Stream]
    made_at: dict[Var, int]
    readers: dict[Var, set[int]]


def find_streams(jaxpr: AnyJaxpr, offloaded: Sequence[Var]) -> Streams:
    """Finds the streams of a body.

    Args:
      jaxpr: a body, calls in it inlined.
      offloaded: its inputs that rest in host memory.
    """
    body = inner(jaxpr)
    flow = _Flow(body.eqns, set(offloaded))
    levels = flow.latest_levels(body)
    groups = _Groups()
    for index, level in levels.items():
        groups.add(index)
        for var in flow.streamed_operands(body.eqns[index]):
            maker = flow.maker[var]
            if levels[maker] == level:
                groups.join(index, maker)
    _join_updates(body, groups, flow, levels)
    readers: dict[Var, set[int]] = {}
    for index, eqn in enumerate(body.eqns):
        for var in eqn.invars:
            if is_var(var):
                readers.setdefault(var, set()).add(index)
    for var in body.outvars:
        if is_var(var):
            readers.setdefault(var, set()).add(len(body.eqns))
    members = {i: group[0] for group in groups.all() for i in group}
    _draw_in(body, members, readers)
    grown: dict[int, list[int]] = {}
    for index, first in sorted(members.items()):
        grown.setdefault(first, []).append(index)
    streams = [
        _stream(group, levels[first], body, flow, readers)
        for first, group in grown.items()
    ]
    streams.sort(key=lambda s: (s.level, s.ready, s.eqns))
    return Streams(
        all=tuple(streams),
        levels=flow.levels,
        aliases=flow.aliases,
        members={i: stream for stream in streams for i in stream.eqns},
        made_at=flow.made_at,
        readers=readers,
    )


def done_reading(
    jaxpr: AnyJaxpr, streams: Streams, leaves: Sequence[Var], level: int
) -> list[Var]:
    """Finds scalars that show that others are done with leaves to be replaced.

    Written in place while something else has yet to read it, the compiler would copy
    a whole leaf in host memory. What reads it for an array is waited for anyway: it
    is on the way to a gradient.

    Args:
      jaxpr: a body.
      streams: its streams.
      leaves: offloaded leaves that a stream replaces.
      level: of that stream; what follows from it cannot be waited for.
    """
    body = inner(jaxpr)
    reading = {i for v in leaves for i in streams.readers[v]}
    done: list[Var] = []
    for index in sorted(reading - streams.members.keys() - {len(body.eqns)}):
        eqn = body.eqns[index]
        outs = [v for v in eqn.outvars if not isinstance(v, DropVar)]
        if not outs or eqn.primitive.name == BARRIER:
            continue
        small = min(outs, key=lambda v: v.aval.size)
        if streams.levels.get(small, 0) <= level and small.aval.size <= 1:
            done.append(small)
    return done


def _join_updates(
    body: AnyJaxpr, groups: _Groups, flow: _Flow, levels: Mapping[int, int]
) -> None:
    """Makes one stream of updates that read the same leaf, on one level.

    A moment and the step that follows from its old value may share nothing else, as
    in Lion. Apart, each would copy the leaf in, and the one that replaces it in place
    would have the compiler keep a copy for the other.
    """
    returned = {v for v in body.outvars if is_var(v)}
    first: dict[tuple[Var, int], int] = {}
    for group in groups.all():
        eqns = [body.eqns[i] for i in group]
        if returned.isdisjoint(e.outvars[0] for e in eqns):
            continue
        read = {v for e in eqns for v in e.invars if is_var(v)}
        for var in flow.offloaded & read:
            leaf = flow.aliases.get(var, var)
            groups.join(group[0], first.setdefault((leaf, levels[group[0]]), group[0]))


def _draw_in(
    body: AnyJaxpr, members: dict[int, int], readers: dict[Var, set[int]]
) -> None:
    """Adds to each stream the element-wise arithmetic that only it reads.

    The scaling and squaring of a gradient would otherwise be done for the whole of
    it before the first piece is updated.
    """
    for index in range(len(body.eqns) - 1, -1, -1):
        eqn = body.eqns[index]
        if index in members or not is_elementwise(eqn):
            continue
        out = eqn.outvars[0]
        reading = readers.get(out, set())
        streams = {members.get(i) for i in reading}
        stream = streams.pop() if len(streams) == 1 else None
        if stream is None or not out.aval.shape:
            continue
        if body.eqns[stream].outvars[0].aval.shape == out.aval.shape:
            members[index] = stream


def _stream(
    indices: Sequence[int],
    level: int,
    body: AnyJaxpr,
    flow: _Flow,
    readers: dict[Var, set[int]],
) -> Stream:
    inside = set(indices)
    made: dict[Var, None] = {}
    read: dict[Var, None] = {}
    for index in indices:
        eqn = body.eqns[index]
        read.update(dict.fromkeys(v for v in eqn.invars if is_var(v)))
        made.update(dict.fromkeys(eqn.outvars))
    taken = [v for v in read if v not in made]
    operands = tuple(v for v in taken if v not in flow.offloaded)
    return Stream(
        eqns=tuple(indices),
        leaves=tuple(v for v in taken if v in flow.offloaded),
        operands=operands,
        outs=tuple(v for v in made if readers.get(v, set()) - inside),
        level=level,
        ready=max((flow.made_at.get(v, -1) for v in taken), default=-1),
    )


class _Flow:
    """Forward: what is streamed, and from which level on the rest may follow."""

    def __init__(self, eqns: Sequence[JaxprEqn], offloaded: set[Var]) -> None:
        self.offloaded = set(offloaded)
        self.aliases: dict[Var, Var] = {}
        # streamed variable -> index of its equation
        self.maker: dict[Var, int] = {}
        self.made_at: dict[Var, int] = {}
        self.levels: dict[Var, int] = {}
        self._first: dict[int, int] = {}
        for index, eqn in enumerate(eqns):
            self._follow(index, eqn)

    def _follow(self, index: int, eqn: JaxprEqn) -> None:
        self.made_at.update(dict.fromkeys(eqn.outvars, index))
        if eqn.primitive.name == BARRIER:
            for var, out in zip(eqn.invars, eqn.outvars, strict=True):
                if isinstance(var, Var) and var in self.offloaded:
                    self.offloaded.add(out)
                    self.aliases[out] = self.aliases.get(var, var)
        level = max((self._after(v) for v in eqn.invars), default=0)
        if self._is_streamed(eqn):
            own = max((self._within(v) for v in eqn.invars), default=0)
            self.maker[eqn.outvars[0]] = index
            self._first[index] = own
            self.levels[eqn.outvars[0]] = own + 1
        elif level:
            self.levels.update(dict.fromkeys(eqn.outvars, level))

    def _after(self, atom: Atom) -> int:
        """Level of what follows from a value by anything but streaming."""
        return self.levels.get(atom, 0) if is_var(atom) else 0

    def _within(self, atom: Atom) -> int:
        """Level of streamed arithmetic that reads a value."""
        if not is_var(atom):
            return 0
        return self.levels.get(atom, 0) - (1 if atom in self.maker else 0)

    def _is_streamed(self, eqn: JaxprEqn) -> bool:
        if not is_elementwise(eqn) or isinstance(eqn.outvars[0], DropVar):
            return False
        shape = eqn.outvars[0].aval.shape
        return bool(shape) and any(
            is_var(v)
            and v.aval.shape == shape
            and (v in self.offloaded or v in self.maker)
            for v in eqn.invars
        )

    def streamed_operands(self, eqn: JaxprEqn) -> list[Var]:
        """The operands of a streamed equation that are streamed themselves."""
        return [v for v in eqn.invars if is_var(v) and v in self.maker]

    def latest_levels(self, body: AnyJaxpr) -> dict[int, int]:
        """Level of each streamed equation: the lowest of those that read it.

        What only a higher level reads (the decay of a moment, before a gradient is
        added) would otherwise be a stream of its own, whose whole result waits.
        """
        latest: dict[Var, int] = {}
        kept = {v for v in body.outvars if is_var(v)}
        levels: dict[int, int] = {}
        for index in range(len(body.eqns) - 1, -1, -1):
            eqn = body.eqns[index]
            if index in self._first:
                out = eqn.outvars[0]
                own = self._first[index]
                level = own if out in kept else max(own, latest.get(out, own))
                levels[index] = level
                for var in self.streamed_operands(eqn):
                    latest[var] = min(latest.get(var, level), level)
            else:
                kept.update(v for v in eqn.invars if is_var(v))
        return dict(sorted(levels.items()))


class _Groups:
    """Disjoint sets of equations."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def add(self, index: int) -> None:
        self._parents.setdefault(index, index)

    def _root(self, index: int) -> int:
        while self._parents[index] != index:
            self._parents[index] = self._parents[self._parents[index]]
            index = self._parents[index]
        return index

    def join(self, one: int, other: int) -> None:
        self._parents[self._root(one)] = self._root(other)

    def all(self) -> list[list[int]]:
        groups: dict[int, list[int]] = {}
        for index in self._parents:
            groups.setdefault(self._root(index), []).append(index)
        return list(groups.values())
