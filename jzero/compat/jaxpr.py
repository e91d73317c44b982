"""One spelling of the jaxpr data structures for JAX 0.10 to 0.12.

Lives here: what moved between versions. `ClosedJaxpr` and `Jaxpr` merged in
0.11, and `scan` then describes its operands by trees (`ft_in`) and no longer by
two counts. May import: jax alone. Read next: `jzero/ir/bodies.py`, the main user.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jax.extend.core import DropVar, Literal, jaxpr_as_fun

if TYPE_CHECKING:
    # The avals of JAX are typed as their abstract base, without shape or dtype.
    class Var:
        """A variable of a jaxpr."""

        aval: Any

        def __init__(self, aval: Any) -> None: ...

    JaxprEqn = Any
else:
    from jax.extend.core import JaxprEqn, Var

# `Jaxpr` and `ClosedJaxpr` are one class since 0.11; the pair is only ever
# handled through the functions below.
AnyJaxpr = Any
Atom = Any

__all__ = [
    "AnyJaxpr",
    "Atom",
    "DropVar",
    "JaxprEqn",
    "Literal",
    "Var",
    "fresh_var",
    "inner",
    "is_jaxpr",
    "is_var",
    "jaxpr_callable",
    "rebuild",
    "scan_counts",
]


def inner(jaxpr: AnyJaxpr) -> AnyJaxpr:
    """Returns the object that holds `eqns`, whether or not consts are attached."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def is_jaxpr(value: Any) -> bool:
    """Says whether a parameter value is a jaxpr, open or closed."""
    return hasattr(inner(value), "eqns") and hasattr(inner(value), "invars")


def is_var(atom: Atom) -> bool:
    """Says whether an atom is a variable and not a literal."""
    return not isinstance(atom, Literal)


def fresh_var(aval: Any) -> Var:
    """Returns a variable that no equation mentions yet."""
    return Var(aval)


def rebuild(
    jaxpr: AnyJaxpr,
    *,
    eqns: Sequence[JaxprEqn],
    invars: Sequence[Var] | None = None,
    outvars: Sequence[Atom] | None = None,
) -> AnyJaxpr:
    """Returns `jaxpr` with other equations, of the same kind (open or closed).

    Effects, consts and debug information are kept: passes add only equations
    that have no effect, so the declared effects stay right.
    """
    body = inner(jaxpr)
    changes: dict[str, Any] = {"eqns": list(eqns)}
    if invars is not None:
        changes["invars"] = list(invars)
    if outvars is not None:
        changes["outvars"] = list(outvars)
    if type(body) is type(jaxpr):  # open, or the merged class
        return jaxpr.replace(**changes)
    return type(jaxpr)(body.replace(**changes), jaxpr.consts)


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Returns (number of consts, number of carries) of a scan equation."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def jaxpr_callable(jaxpr: AnyJaxpr) -> Callable[..., Sequence[Any]]:
    """Returns a function of flat arguments that evaluates a closed jaxpr."""
    return jaxpr_as_fun(jaxpr)
