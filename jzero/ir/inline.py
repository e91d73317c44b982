"""Inlining of calls through which given values pass.

Lives here: `inline_calls`. Small library functions are traced as calls (`jnp.where`
is one); an analysis of element-wise arithmetic need not stop at them. May import:
compat, ir. Read next: `streams.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jzero.compat.jaxpr import (
    AnyJaxpr,
    Atom,
    DropVar,
    JaxprEqn,
    Var,
    fresh_var,
    inner,
    is_var,
    rebuild,
)
from jzero.ir.bodies import REMAT_NAMES, bodies_of
from jzero.ir.rules import BARRIER, is_elementwise

_LOOPS_AND_BRANCHES = frozenset({"scan", "while", "cond"})


def inline_calls(jaxpr: AnyJaxpr, is_followed: Sequence[bool]) -> AnyJaxpr:
    """Inlines the calls that take a followed value.

    Args:
      jaxpr: a body.
      is_followed: per input, whether it is followed; so is what follows from it by
        element-wise arithmetic.

    Returns:
      The body with plain equations in place of such calls. Loops, branches and
      recomputed blocks stay, as do calls with constants or effects of their own.
    """
    body = inner(jaxpr)
    followed = {v for v, f in zip(body.invars, is_followed, strict=True) if f}
    inliner = _Inliner(followed)
    names: dict[Var, Atom] = {}
    for eqn in body.eqns:
        inliner.add(eqn, names, None)
    if not inliner.has_inlined:
        return jaxpr
    outvars = [_read(v, names) for v in body.outvars]
    return rebuild(jaxpr, eqns=inliner.eqns, outvars=outvars)


class _Inliner:
    def __init__(self, followed: set[Var]) -> None:
        self.eqns: list[JaxprEqn] = []
        self.has_inlined = False
        self._followed = followed

    def add(self, eqn: JaxprEqn, names: dict[Var, Atom], caller: Any) -> None:
        """Appends one equation, or those of the call that it is.

        Args:
          eqn: the equation.
          names: what stands for the variables of its body in the new one, where
            that is not the variable itself.
          caller: the call that its body belongs to, or None.
        """
        operands = [_read(v, names) for v in eqn.invars]
        is_touched = any(is_var(v) and v in self._followed for v in operands)
        if is_touched and _is_plain_call(eqn):
            self._inline(eqn, operands, names)
            return
        outs = list(eqn.outvars)
        if caller is not None:
            outs = [v if isinstance(v, DropVar) else fresh_var(v.aval) for v in outs]
            names.update(zip(eqn.outvars, outs, strict=True))
        if is_touched and is_elementwise(eqn):
            self._followed |= set(outs)
        if is_touched and eqn.primitive.name == BARRIER:
            pairs = zip(operands, outs, strict=True)
            self._followed |= {o for v, o in pairs if v in self._followed}
        changes: dict[str, Any] = {"invars": operands, "outvars": outs}
        if caller is not None:
            stack = caller.source_info.name_stack + eqn.source_info.name_stack
            changes["source_info"] = eqn.source_info.replace(name_stack=stack)
        is_same = caller is None and all(
            a is b for a, b in zip(operands, eqn.invars, strict=True)
        )
        self.eqns.append(eqn if is_same else eqn.replace(**changes))

    def _inline(
        self, eqn: JaxprEqn, operands: Sequence[Atom], names: dict[Var, Atom]
    ) -> None:
        self.has_inlined = True
        body = inner(bodies_of(eqn)[0].jaxpr)
        inside: dict[Var, Atom] = dict(zip(body.invars, operands, strict=True))
        for part in body.eqns:
            self.add(part, inside, eqn)
        for var, result in zip(eqn.outvars, body.outvars, strict=True):
            if not isinstance(var, DropVar):
                names[var] = _read(result, inside)


def _read(atom: Atom, names: dict[Var, Atom]) -> Atom:
    return names.get(atom, atom) if is_var(atom) else atom


def _is_plain_call(eqn: JaxprEqn) -> bool:
    name = eqn.primitive.name
    if name in _LOOPS_AND_BRANCHES or name in REMAT_NAMES or eqn.effects:
        return False
    bodies = bodies_of(eqn)
    return len(bodies) == 1 and not inner(bodies[0].jaxpr).constvars
