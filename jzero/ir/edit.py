"""Writing a new body: copy equations, substitute variables, insert placements.

Lives here: `Editor`. Bodies are edited by surgery, not by tracing again, so an
equation that a pass leaves alone stays the very same object, with its source
line, named scope, effects and parameters. What is inserted is traced once from
a small function and takes the source line of the equation it serves. May
import: compat. Read next: `jzero/passes/gather.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.source_info_util import NameStack
from jax.sharding import Mesh, NamedSharding

from jzero.compat.jaxpr import (
    AnyJaxpr,
    Atom,
    JaxprEqn,
    Var,
    fresh_var,
    inner,
    is_var,
    rebuild,
)
from jzero.compat.memory import abstract_on_host, is_on_host
from jzero.ir.specs import Dims, to_spec


class Editor:
    """Collects the equations of a new body.

    Attributes:
      eqns: the equations so far.
      num_inserted: how many of them are not copies.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.eqns: list[JaxprEqn] = []
        self.num_inserted = 0
        self._renamed: dict[Var, Atom] = {}

    def read(self, atom: Atom) -> Atom:
        """Returns what now stands for an atom of the old body."""
        if not is_var(atom):
            return atom
        return self._renamed.get(atom, atom)

    def rename(self, var: Var, atom: Atom) -> None:
        """Makes every later reader of `var` read `atom` instead."""
        self._renamed[var] = atom

    def copy(
        self,
        eqn: JaxprEqn,
        *,
        operands: Sequence[Atom] | None = None,
        params: dict[str, Any] | None = None,
    ) -> None:
        """Appends an equation of the old body, with renamed or given operands."""
        new = [self.read(v) for v in eqn.invars] if operands is None else operands
        is_same = all(a is b for a, b in zip(new, eqn.invars, strict=True))
        if params is None and is_same:
            self.eqns.append(eqn)
            return
        changes: dict[str, Any] = {"invars": list(new)}
        if params is not None:
            changes["params"] = params
        self.eqns.append(eqn.replace(**changes))

    def repeat(
        self, eqn: JaxprEqn, operands: Sequence[Atom], *, scope: str
    ) -> list[Var]:
        """Appends an equation of the old body once more, on other operands."""
        outs = [fresh_var(v.aval) for v in eqn.outvars]
        changes = {"invars": list(operands), "outvars": outs}
        info = _scoped(eqn, scope)
        self.eqns.append(eqn.replace(**changes, source_info=info))
        self.num_inserted += 1
        return outs

    def append(self, eqn: JaxprEqn) -> None:
        """Appends an equation that was made elsewhere."""
        self.eqns.append(eqn)
        self.num_inserted += 1

    def insert(
        self,
        function: Callable[..., Any],
        *atoms: Atom,
        like: JaxprEqn | None,
        scope: str,
        outs: Sequence[Var] | None = None,
    ) -> list[Var]:
        """Appends the equations of `function` applied to `atoms`.

        Args:
          function: takes and returns arrays; traced on the avals of `atoms`.
          *atoms: variables of the new body.
          like: equation whose source line and scope the new ones take.
          scope: name shown in profiles, such as `jzero.gather`.
          outs: variables that shall hold the results, which must be results of
            equations; None makes new ones.

        Returns:
          The variables that hold the results.
        """
        template = inner(jax.make_jaxpr(function)(*[_struct(a) for a in atoms]))
        names: dict[Var, Atom] = dict(zip(template.invars, atoms, strict=True))
        wanted = {} if outs is None else dict(zip(template.outvars, outs, strict=True))
        for eqn in template.eqns:
            made = [wanted.get(v, fresh_var(v.aval)) for v in eqn.outvars]
            names.update(zip(eqn.outvars, made, strict=True))
            changes: dict[str, Any] = {
                "invars": [names[v] if is_var(v) else v for v in eqn.invars],
                "outvars": made,
            }
            changes["source_info"] = _scoped(eqn if like is None else like, scope)
            self.eqns.append(eqn.replace(**changes))
            self.num_inserted += 1
        return [names[v] for v in template.outvars]

    def constrain(
        self, atom: Atom, dims: Dims, *, like: JaxprEqn | None, scope: str
    ) -> Var:
        """Appends a sharding constraint and returns the constrained value."""
        sharding = NamedSharding(self.mesh, to_spec(dims))

        def place(x: jax.Array) -> jax.Array:
            return jax.lax.with_sharding_constraint(x, sharding)

        return self.insert(place, atom, like=like, scope=scope)[0]

    def tie(self, *atoms: Atom, like: JaxprEqn | None, scope: str) -> list[Var]:
        """Appends a barrier: no result exists before all operands do."""

        def barrier(*xs: jax.Array) -> tuple[jax.Array, ...]:
            return jax.lax.optimization_barrier(xs)

        return self.insert(barrier, *atoms, like=like, scope=scope)

    def finish(
        self, jaxpr: AnyJaxpr, *, invars: Sequence[Var] | None = None
    ) -> AnyJaxpr:
        """Returns the new body; the old one itself if nothing changed."""
        body = inner(jaxpr)
        outvars = [self.read(v) for v in body.outvars]
        is_same = (
            len(self.eqns) == len(body.eqns)
            and all(a is b for a, b in zip(self.eqns, body.eqns, strict=True))
            and all(a is b for a, b in zip(outvars, body.outvars, strict=True))
            and (
                invars is None
                or all(a is b for a, b in zip(invars, body.invars, strict=True))
            )
        )
        if is_same:
            return jaxpr
        return rebuild(jaxpr, eqns=self.eqns, invars=invars, outvars=outvars)


def _scoped(eqn: JaxprEqn, scope: str) -> Any:
    """Returns line and scope of an equation, within one more scope."""
    info = eqn.source_info
    return info.replace(name_stack=info.name_stack + NameStack().extend(scope))


def is_inserted(eqn: JaxprEqn, scope: str) -> bool:
    """Says whether an `Editor` inserted the equation under a scope."""
    # JAX writes a scope within a transformation as `transpose(jvp(scope))`.
    return scope in re.split(r"[/()]", str(eqn.source_info.name_stack))


def _struct(atom: Atom) -> Any:
    # The whole aval: retracing from shape and dtype alone would lose weak types
    # and shardings in types.
    aval = atom.aval
    if is_on_host(aval):
        return abstract_on_host(aval)
    return jax.ShapeDtypeStruct(
        aval.shape,
        aval.dtype,
        weak_type=getattr(aval, "weak_type", False),
        sharding=None,
    )
