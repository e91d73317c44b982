"""In which form the bodies of an equation use one of its operands.

Lives here: `Uses.sole_form`, which decides whether a weight can be gathered
outside a body and handed in whole: only if the body never works on the shard.
May import: compat, ir. Read next: `jzero/passes/gather.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jzero.compat.jaxpr import AnyJaxpr, JaxprEqn, Var, inner
from jzero.ir.bodies import Body, bodies_of
from jzero.ir.edit import is_inserted
from jzero.ir.partitioned import read_shardwise
from jzero.ir.rules import (
    BARRIER,
    CAST,
    CONSTRAINT,
    is_elementwise,
    is_reduction,
    move_dims,
    moves_dims,
)

# The forms of a use: as it is, as a shard, or (any other string) cast to a dtype.
WHOLE = ""
SHARD = "shard"
# Handed out of the body.
_OUTPUT = "output"


@dataclass(slots=True)
class Uses:
    """Memoised forms of use of body inputs.

    Attributes:
      scope: what an `Editor` inserted under this scope is a gather, made of a shard.
      is_at_use: bodies gather for themselves. Then a cast that leaves the body
        must do so as a shard, and the operand of any other sharding constraint is
        one too: the body itself says there how it shall lie.
    """

    scope: str
    is_at_use: bool
    _memo: dict[int, dict[Var, frozenset[str]]] = field(default_factory=dict)
    _alive: list[AnyJaxpr] = field(default_factory=list)

    def sole_form(self, bodies: Sequence[Body], operand: int) -> str | None:
        """Returns the one form in which bodies use an operand.

        Args:
          bodies: the bodies of an equation.
          operand: index of the operand.

        Returns:
          `WHOLE`, or the name of the one dtype that every use casts it to, or
          None if a shard is used or the operand is not used at all.
        """
        forms: set[str] = set()
        for body in bodies:
            table = self._table(body.jaxpr)
            for slot, var in zip(body.ins, inner(body.jaxpr).invars, strict=True):
                if slot.index == operand:
                    forms |= table.get(var, frozenset())
        if not forms or forms & {SHARD, _OUTPUT}:
            return None
        return forms.pop() if len(forms) == 1 else WHOLE

    def _table(self, jaxpr: AnyJaxpr) -> dict[Var, frozenset[str]]:
        body = inner(jaxpr)
        if id(body) not in self._memo:
            self._alive.append(body)
            self._memo[id(body)] = self._compute(body)
        return self._memo[id(body)]

    def _compute(self, body: AnyJaxpr) -> dict[Var, frozenset[str]]:
        forms: dict[Var, set[str]] = {}
        for var in body.outvars:
            if isinstance(var, Var):
                forms.setdefault(var, set()).add(_OUTPUT)
        # Backwards, so that the uses of a cast are known before the cast.
        for eqn in reversed(body.eqns):
            for i, var in enumerate(eqn.invars):
                if isinstance(var, Var):
                    forms.setdefault(var, set()).update(self._forms(eqn, i, forms))
        return {v: frozenset(f) for v, f in forms.items()}

    def _forms(
        self, eqn: JaxprEqn, operand: int, forms: dict[Var, set[str]]
    ) -> set[str]:
        if eqn.primitive.name == CAST:
            uses = forms.get(eqn.outvars[0], set())
            if WHOLE in uses and not self.is_at_use:
                # What backward needs of it is the array that forward was given.
                uses = uses - {_OUTPUT}
            if uses != {WHOLE}:
                return {SHARD} if uses else set()
            dtype = eqn.params["new_dtype"]
            # A cast to a wider dtype is better done after the gather.
            is_wider = dtype.itemsize > eqn.invars[0].aval.dtype.itemsize
            return {WHOLE if is_wider else str(dtype)}
        if eqn.primitive.name == BARRIER or is_elementwise(eqn) or is_reduction(eqn):
            return {SHARD}
        if moves_dims(eqn):
            whole = (None,) * len(eqn.invars[0].aval.shape)
            uses = forms.get(eqn.outvars[0], set())
            can_stay = move_dims(eqn, whole) is not None
            return {SHARD if can_stay and uses - {WHOLE} else WHOLE}
        if eqn.primitive.name == CONSTRAINT:
            is_shard = self.is_at_use or is_inserted(eqn, self.scope)
            return {SHARD if is_shard else WHOLE}
        if read_shardwise(eqn) is not None:
            return {SHARD}
        found: set[str] = set()
        bodies = bodies_of(eqn)
        for body in bodies:
            table = self._table(body.jaxpr)
            for slot, var in zip(body.ins, inner(body.jaxpr).invars, strict=True):
                if slot.index == operand:
                    found |= table.get(var, frozenset())
        return found if bodies else {WHOLE}
