"""Facts that planning needs from a traced program.

Lives here: which dims are the stacked dim of a scanned layer, how often loops use
an input whole, and which axes the user already placed outputs on. May import: compat,
ir. Read next: `jzero/plan/layout.py`, which uses the facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from jzero.compat.jaxpr import AnyJaxpr, JaxprEqn, Var, inner, is_var
from jzero.ir.bodies import bodies_of
from jzero.ir.marks import Analysis, Mark
from jzero.ir.rules import CONSTRAINT, is_elementwise


def scanned_inputs(jaxpr: AnyJaxpr) -> tuple[bool, ...]:
    """Says for each input whether some loop consumes its leading dim.

    Casts and other element-wise arithmetic in between do not hide it.
    """
    body = inner(jaxpr)
    scanned: set[Var] = set()
    for eqn in reversed(body.eqns):
        if is_elementwise(eqn):
            if eqn.outvars[0] in scanned:
                shape = eqn.outvars[0].aval.shape
                scanned.update(
                    v for v in eqn.invars if is_var(v) and v.aval.shape == shape
                )
            continue
        for part in bodies_of(eqn):
            flags = scanned_inputs(part.jaxpr)
            for slot, is_scanned in zip(part.ins, flags, strict=True):
                atom = eqn.invars[slot.index]
                # Inside a scan the leading dim of a stacked operand is gone, so
                # only the operand's own consumption counts.
                if is_var(atom) and (
                    slot.is_stacked or (is_scanned and not slot.is_stacked)
                ):
                    scanned.add(atom)
    return tuple(v in scanned for v in body.invars)


def count_turns(jaxpr: AnyJaxpr) -> tuple[int, ...]:
    """Says for each input how many turns of loops use it whole, at most.

    A step that adds up gradients of micro-batches in a scan uses its weights in
    every turn. Layers that a scan takes one by one are used once, outside of loops
    and element-wise arithmetic nothing counts as more, and a `while` as one turn.

    Returns:
        0 for an input that only element-wise equations use.
    """
    body = inner(jaxpr)
    turns: dict[Var, int] = {}

    def note(atom: Any, num: int) -> None:
        if is_var(atom):
            turns[atom] = max(turns.get(atom, 0), num)

    for eqn in reversed(body.eqns):
        bodies = bodies_of(eqn)
        if is_elementwise(eqn) or eqn.primitive.name == CONSTRAINT:
            num = turns.get(eqn.outvars[0], 0)
            for atom in eqn.invars:
                note(atom, num)
        elif not bodies:
            for atom in eqn.invars:
                note(atom, 1)
        length = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        for part in bodies:
            inside = count_turns(part.jaxpr)
            for slot, num in zip(part.ins, inside, strict=True):
                note(eqn.invars[slot.index], num * (1 if slot.is_stacked else length))
    return tuple(turns.get(v, 0) for v in body.invars)


def derived_outputs(jaxpr: AnyJaxpr) -> tuple[int | None, ...]:
    """Returns the input from which each output follows element by element.

    New parameters follow from the old, to which an update is added; gradients
    follow from none, or from another weight that multiplies them.
    """
    marks = []
    for leaf, var in enumerate(inner(jaxpr).invars):
        shape = getattr(var.aval, "shape", ())
        whole = (None,) * len(shape)
        marks.append(Mark(dims=whole, base=whole, leaf=leaf) if shape else None)
    outs = Analysis().flow(jaxpr, marks).outs
    return tuple(None if m is None else m.leaf for m in outs)


def stacked_outputs(jaxpr: AnyJaxpr) -> tuple[bool, ...]:
    """Says for each output whether a loop stacked it, turn by turn.

    A layer stack that `scan` initialises is one; planning must not shard its
    leading dim, which the training step will scan over.
    """
    return _stacked_outputs(jaxpr, (False,) * len(inner(jaxpr).invars))


def _stacked_outputs(jaxpr: AnyJaxpr, in_flags: Sequence[bool]) -> tuple[bool, ...]:
    body = inner(jaxpr)
    stacked = {v for v, f in zip(body.invars, in_flags, strict=True) if f}
    for eqn in body.eqns:
        if is_elementwise(eqn) or eqn.primitive.name == CONSTRAINT:
            if any(is_var(v) and v in stacked for v in eqn.invars):
                stacked.update(eqn.outvars)
            continue
        for part in bodies_of(eqn):
            flags = [
                is_var(v) and v in stacked
                for v in (eqn.invars[s.index] for s in part.ins)
            ]
            inside = _stacked_outputs(part.jaxpr, flags)
            for slot, flag in zip(part.outs, inside, strict=True):
                if slot.index >= 0 and (flag or slot.is_stacked):
                    stacked.add(eqn.outvars[slot.index])
    return tuple(is_var(v) and v in stacked for v in body.outvars)


def constrained_outputs(jaxpr: AnyJaxpr) -> tuple[PartitionSpec | None, ...]:
    """Returns the spec that the user's own constraint gives each output."""
    body = inner(jaxpr)
    specs: dict[Var, PartitionSpec] = {}
    for eqn in body.eqns:
        for var, spec in _constraints_of(eqn, specs):
            specs[var] = spec
    return tuple(specs.get(v) if is_var(v) else None for v in body.outvars)


def _constraints_of(
    eqn: JaxprEqn, specs: dict[Var, PartitionSpec]
) -> list[tuple[Var, PartitionSpec]]:
    if eqn.primitive.name == CONSTRAINT:
        sharding = eqn.params["sharding"]
        if isinstance(sharding, NamedSharding):
            return [(eqn.outvars[0], sharding.spec)]
        return []
    if is_elementwise(eqn):
        shape = eqn.outvars[0].aval.shape
        for atom in eqn.invars:
            if is_var(atom) and atom in specs and atom.aval.shape == shape:
                return [(eqn.outvars[0], specs[atom])]
        return []
    found: list[tuple[Var, PartitionSpec]] = []
    bodies = bodies_of(eqn)
    if len(bodies) == 1 and not bodies[0].carries:
        part = bodies[0]
        inside = constrained_outputs(part.jaxpr)
        for slot, spec in zip(part.outs, inside, strict=True):
            if spec is not None:
                whole = PartitionSpec(None, *spec) if slot.is_stacked else spec
                found.append((eqn.outvars[slot.index], whole))
    return found
