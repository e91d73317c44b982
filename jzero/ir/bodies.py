"""How the operands of an equation reach the bodies it carries.

Lives here: one table of the primitives that hold a jaxpr (`scan`, `while`,
`cond`, `jit`, `remat`, `custom_jvp/vjp`), each described as slots, so that an
analysis or a pass walks into all of them with the same loop. A primitive that
is not listed is opaque: its operands are gathered before it, which is always
right. May import: compat. Read next: `marks.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jzero.compat.jaxpr import AnyJaxpr, JaxprEqn, inner, rebuild, scan_counts

# primitive name -> name of the parameter that holds the body, one to one with
# the operands.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}

REMAT_NAMES = frozenset({"remat2", "checkpoint"})
LOOP_NAMES = frozenset({"scan", "while"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Where one input or output of a body is connected outside.

    Attributes:
      index: operand index (for inputs) or result index (for outputs) of the
        equation; -1 when the body's output is not a result (a loop condition).
      is_stacked: the outer array has a leading dim that the loop consumes.
    """

    index: int
    is_stacked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """One body of an equation.

    Attributes:
      param: name of the equation parameter that holds it.
      position: index within the parameter when that is a tuple (`branches`).
      jaxpr: the body, open or closed as the primitive keeps it.
      ins: a slot per body input.
      outs: a slot per body output.
      carries: pairs (input position, output position) that a loop feeds back.
    """

    param: str
    position: int | None = None
    jaxpr: AnyJaxpr
    ins: tuple[Slot, ...]
    outs: tuple[Slot, ...]
    carries: tuple[tuple[int, int], ...] = ()


def _slots(indices: Sequence[int], *, is_stacked: bool = False) -> tuple[Slot, ...]:
    return tuple(Slot(index=i, is_stacked=is_stacked) for i in indices)


def _scan_body(eqn: JaxprEqn) -> tuple[Body, ...]:
    num_consts, num_carry = scan_counts(eqn.params)
    num_fixed = num_consts + num_carry
    ins = _slots(range(num_fixed)) + _slots(
        range(num_fixed, len(eqn.invars)), is_stacked=True
    )
    outs = _slots(range(num_carry)) + _slots(
        range(num_carry, len(eqn.outvars)), is_stacked=True
    )
    carries = tuple((num_consts + i, i) for i in range(num_carry))
    body = eqn.params["jaxpr"]
    return (Body(param="jaxpr", jaxpr=body, ins=ins, outs=outs, carries=carries),)


def _while_bodies(eqn: JaxprEqn) -> tuple[Body, ...]:
    num_cond, num_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    first_carry = num_cond + num_body
    carry = list(range(first_carry, len(eqn.invars)))
    cond = Body(
        param="cond_jaxpr",
        jaxpr=eqn.params["cond_jaxpr"],
        ins=_slots([*range(num_cond), *carry]),
        outs=(Slot(index=-1),),
    )
    body = Body(
        param="body_jaxpr",
        jaxpr=eqn.params["body_jaxpr"],
        ins=_slots([*range(num_cond, first_carry), *carry]),
        outs=_slots(range(len(carry))),
        carries=tuple((num_body + i, i) for i in range(len(carry))),
    )
    # The condition reads what the body's carries turn out to be, so it follows.
    return (body, cond)


def _cond_bodies(eqn: JaxprEqn) -> tuple[Body, ...]:
    return tuple(
        Body(
            param="branches",
            position=i,
            jaxpr=branch,
            ins=_slots(range(1, len(eqn.invars))),
            outs=_slots(range(len(eqn.outvars))),
        )
        for i, branch in enumerate(eqn.params["branches"])
    )


def bodies_of(eqn: JaxprEqn) -> tuple[Body, ...]:
    """Returns the bodies of an equation that passes may walk into.

    An empty tuple means that the equation is opaque or has no body at all.
    """
    name = eqn.primitive.name
    if name == "scan":
        return _scan_body(eqn)
    if name == "while":
        return _while_bodies(eqn)
    if name == "cond":
        return _cond_bodies(eqn)
    param = _CALLS.get(name)
    if param is None or param not in eqn.params:
        return ()
    jaxpr = eqn.params[param]
    if len(inner(jaxpr).invars) != len(eqn.invars):
        return ()
    return (
        Body(
            param=param,
            jaxpr=jaxpr,
            ins=_slots(range(len(eqn.invars))),
            outs=_slots(range(len(eqn.outvars))),
        ),
    )


def with_bodies(
    eqn: JaxprEqn, bodies: Sequence[Body], new_jaxprs: Sequence[AnyJaxpr]
) -> dict[str, Any]:
    """Returns the equation's parameters with other bodies of the same signature."""
    params = dict(eqn.params)
    for body, jaxpr in zip(bodies, new_jaxprs, strict=True):
        if body.position is None:
            params[body.param] = jaxpr
        else:
            branches = list(params[body.param])
            branches[body.position] = jaxpr
            params[body.param] = tuple(branches)
    return params


__all__ = [
    "LOOP_NAMES",
    "REMAT_NAMES",
    "Body",
    "Slot",
    "bodies_of",
    "rebuild",
    "with_bodies",
]
