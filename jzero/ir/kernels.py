"""Choosing the backend of fused updates in a program that is traced already.

Lives here: `choose_kernels`. A fused update is traced as a call that says what it is;
here that call is opened, and its equations are those of the backend that the settings
name, or else the ones it was traced with. So no pass ever sees the call. May import:
compat, errors, ir.bodies, ir.edit, pallas_kernels. Read next:
`pallas_kernels/marked.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh

from jzero.compat.jaxpr import (
    AnyJaxpr,
    Atom,
    DropVar,
    JaxprEqn,
    Var,
    fresh_var,
    inner,
    is_var,
)
from jzero.errors import ConfigError, format_problem
from jzero.ir.bodies import bodies_of, with_bodies
from jzero.ir.edit import Editor
from pallas_kernels.fused import run_update
from pallas_kernels.marked import MARK, UpdateSpec, read_spec

__all__ = ["choose_kernels", "describe_kernels"]

_REFERENCES = ("auto", "xla")


def choose_kernels(
    jaxpr: AnyJaxpr, backend: str | None, mesh: Mesh
) -> tuple[AnyJaxpr, tuple[UpdateSpec, ...]]:
    """Opens the calls of fused updates, by the given backend.

    Args:
      jaxpr: a traced step.
      backend: of `pallas_kernels.fused_update`, instead of what every update was asked
        for with; None keeps that.
      mesh: the devices.

    Returns:
      The step without such calls, and what was found of them.

    Raises:
      ConfigError: a backend is given, and no update could run by it.
    """
    chooser = _Chooser(backend, mesh)
    chosen = chooser.rewrite(jaxpr)
    if backend is not None:
        _check_effect(chooser.found, backend)
    return chosen, tuple(chooser.found)


def describe_kernels(found: Sequence[UpdateSpec], backend: str) -> str:
    """Returns the line of a plan that says what runs by a backend.

    Example:
      >>> spec = UpdateSpec(
      ...     rules=(), forms=(), backend="auto", structure=None, kinds=()
      ... )
      >>> describe_kernels([spec], "xla")
      "kernels: 'xla' for 1 fused update of 0 leaves, which asked for 'auto'"
    """
    num_leaves = sum(len(spec.forms) for spec in found)
    asked = ", ".join(dict.fromkeys(repr(spec.backend) for spec in found))
    updates = "1 fused update" if len(found) == 1 else f"{len(found)} fused updates"
    return (
        f"kernels: {backend!r} for {updates} of {num_leaves} leaves, which asked for "
        f"{asked}"
    )


class _Chooser:
    def __init__(self, backend: str | None, mesh: Mesh) -> None:
        self.found: list[UpdateSpec] = []
        self._backend = backend
        self._mesh = mesh

    def rewrite(self, jaxpr: AnyJaxpr) -> AnyJaxpr:
        """Returns a body with the updates in it opened."""
        editor = Editor(self._mesh)
        for eqn in inner(jaxpr).eqns:
            bodies = bodies_of(eqn)
            spec = _spec_of(eqn)
            if spec is not None:
                self.found.append(spec)
                _open(editor, eqn, self._body(eqn, spec))
                continue
            new = [self.rewrite(body.jaxpr) for body in bodies]
            is_same = all(n is b.jaxpr for n, b in zip(new, bodies, strict=True))
            editor.copy(eqn, params=None if is_same else with_bodies(eqn, bodies, new))
        return editor.finish(jaxpr)

    def _body(self, eqn: JaxprEqn, spec: UpdateSpec) -> AnyJaxpr:
        """Returns the body that shall stand for a call."""
        if self._backend is None:
            return bodies_of(eqn)[0].jaxpr
        kinds = tuple((v.aval.shape, str(v.aval.dtype)) for v in eqn.invars)
        if kinds != spec.kinds:
            raise ConfigError(
                format_problem(
                    f"ZeroConfig(kernels={self._backend!r}): a fused update of "
                    f"{len(spec.forms)} leaves cannot be run by another backend, since "
                    "it was vmapped or differentiated, or a part of it dropped.",
                    (),
                    "leave kernels out, and give the optimizer its backend.",
                )
            )
        chosen = replace(spec, backend=self._backend)

        def update(*arrays: Any) -> list[Any]:
            return jax.tree.leaves(run_update(chosen, *arrays))

        structs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
        try:
            return jax.make_jaxpr(update)(*structs)
        except ValueError as error:  # blocks that do not fit, by name
            raise ConfigError(
                f"ZeroConfig(kernels={self._backend!r}): {error}"
            ) from error


def _spec_of(eqn: JaxprEqn) -> UpdateSpec | None:
    """Returns what a call is an update by, if it is one."""
    bodies = bodies_of(eqn)
    is_call = len(bodies) == 1 and not any(slot.is_stacked for slot in bodies[0].ins)
    if not is_call or eqn.primitive.name not in ("jit", "pjit"):
        return None
    return read_spec(inner(bodies[0].jaxpr).eqns)


def _open(editor: Editor, eqn: JaxprEqn, jaxpr: AnyJaxpr) -> None:
    """Appends the equations of a body in place of the call of it."""
    body = inner(jaxpr)
    names: dict[Var, Atom] = dict(
        zip(body.invars, [editor.read(v) for v in eqn.invars], strict=True)
    )

    def read(atom: Atom) -> Atom:
        return names.get(atom, atom) if is_var(atom) else atom

    for part in body.eqns:
        if part.primitive.name == MARK:
            names[part.outvars[0]] = read(part.invars[0])
            continue
        outs = [
            v if isinstance(v, DropVar) else fresh_var(v.aval) for v in part.outvars
        ]
        stack = eqn.source_info.name_stack + part.source_info.name_stack
        editor.append(
            part.replace(
                invars=[read(v) for v in part.invars],
                outvars=outs,
                source_info=part.source_info.replace(name_stack=stack),
            )
        )
        names.update(zip(part.outvars, outs, strict=True))
    for var, result in zip(eqn.outvars, body.outvars, strict=True):
        if not isinstance(var, DropVar):
            editor.rename(var, read(result))


def _check_effect(found: Sequence[UpdateSpec], backend: str) -> None:
    if not found:
        raise ConfigError(
            format_problem(
                f"ZeroConfig(kernels={backend!r}) has no effect: the step has no fused "
                "update.",
                (),
                "use an optimizer of jzero.optim, or leave kernels out.",
            )
        )
    if backend not in _REFERENCES and all(spec.asks_for_deltas for spec in found):
        raise ConfigError(
            format_problem(
                f"ZeroConfig(kernels={backend!r}) has no effect: the optimizer is "
                "asked for deltas, which always come from the reference.",
                (),
                "call jzero.TrainState.apply_gradients, jzero.optim.apply_to_nnx or "
                "the optimizer's own apply, or leave kernels out.",
            )
        )
