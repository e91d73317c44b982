"""Pass `offload_activations`: named activations wait for backward in host memory.

What a policy of `jax.checkpoint` saves under a name that `Offload(activations=...)`
lists is copied to host memory where it is made, and back when the backward pass of its
block starts. In a scan each turn writes its part of a stack in host memory, and the
backward scan cuts each part out by its number.

Source: ZeRO-Infinity (arXiv 2104.07857), section 5.1, offload of activations. May
import: compat, ir, plan. Read next: `offload.py`, the pass for the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.sharding import Mesh

from jzero.compat.jaxpr import (
    AnyJaxpr,
    Atom,
    JaxprEqn,
    Var,
    fresh_var,
    inner,
    is_var,
    jaxpr_callable,
    rebuild,
    scan_counts,
)
from jzero.compat.memory import abstract_on_host, to_device, to_host
from jzero.errors import ConfigError
from jzero.ir.bodies import REMAT_NAMES, bodies_of, with_bodies
from jzero.ir.edit import Editor
from jzero.ir.host_scan import scan_by_number
from jzero.ir.rules import is_array
from jzero.ir.trace import TracedStep
from jzero.plan.plan import Plan

SCOPE = "jzero.offload_activations"

# What a policy puts behind a name: the value itself.
_SAME = frozenset({"reduce_precision", "copy", "optimization_barrier"})


def offload_activations(step: TracedStep, plan: Plan) -> TracedStep:
    """Keeps saved activations of given names in host memory until backward.

    Args:
      step: the traced step.
      plan: its plan; without `Offload(activations=...)` nothing changes.

    Returns:
      The step with copies to host memory and back; the same numbers.

    Raises:
      ConfigError: no block saves an activation under one of the names.
    """
    offload = plan.config.offload
    if offload is None or not offload.activations:
        return step
    mover = _Mover(step.mesh, frozenset(offload.activations))
    jaxpr = mover.rewrite(step.jaxpr)
    if missing := sorted(set(offload.activations) - mover.moved):
        seen = ", ".join(map(repr, sorted(mover.seen))) or "none"
        raise ConfigError(
            f"Offload(activations=...): no block saves {', '.join(map(repr, missing))} "
            f"for its backward pass. Names in this step: {seen}.\n"
            "Remedy: name the value with jax.ad_checkpoint.checkpoint_name and save it "
            "with policy=jax.checkpoint_policies.save_only_these_names(...)."
        )
    return step.with_jaxpr(jaxpr)


class _Mover:
    def __init__(self, mesh: Mesh, names: frozenset[str]) -> None:
        self._mesh = mesh
        self._names = names
        self.moved: set[str] = set()
        self.seen: set[str] = set()

    def rewrite(self, jaxpr: AnyJaxpr) -> AnyJaxpr:
        """Rewrites one body, and those within it."""
        body = inner(jaxpr)
        editor = Editor(self._mesh)
        named = self._named(body)
        # named value -> its copy in host memory; stack in host memory -> itself
        resting: dict[Var, Atom] = {}
        stacks: dict[Var, Var] = {}
        for eqn in body.eqns:
            held = [is_var(v) and v in stacks for v in eqn.invars]
            if any(held):
                self._read_stacks(eqn, held, stacks, editor)
            elif eqn.primitive.name in REMAT_NAMES and eqn.params["differentiated"]:
                self._fetch_for(eqn, named, resting, editor)
            elif eqn.primitive.name == "scan":
                self._rewrite_scan(eqn, stacks, editor)
            else:
                self._rewrite_bodies(eqn, editor)
        # A stack that is returned must be where its type says.
        outvars = [
            self._on_device(v, None, stacks, editor)
            if is_var(v) and v in stacks
            else editor.read(v)
            for v in body.outvars
        ]
        if not editor.num_inserted:
            return jaxpr
        return rebuild(jaxpr, eqns=editor.eqns, outvars=outvars)

    def _named(self, body: AnyJaxpr) -> dict[Var, str]:
        """Values that are saved under one of the names, as far as is seen here."""
        named: dict[Var, str] = {}
        for eqn in body.eqns:
            if eqn.primitive.name == "name":
                self.seen.add(eqn.params["name"])
                if eqn.params["name"] in self._names:
                    named[eqn.outvars[0]] = eqn.params["name"]
            elif eqn.primitive.name in _SAME:
                for var, out in zip(eqn.invars, eqn.outvars, strict=True):
                    if isinstance(var, Var) and var in named:
                        named[out] = named[var]
        return named

    def _rewrite_bodies(self, eqn: JaxprEqn, editor: Editor) -> None:
        bodies = bodies_of(eqn)
        new = [self.rewrite(part.jaxpr) for part in bodies]
        if all(n is b.jaxpr for n, b in zip(new, bodies, strict=True)):
            editor.copy(eqn)
            return
        editor.copy(eqn, params=with_bodies(eqn, bodies, new))
        editor.num_inserted += 1

    def _fetch_for(
        self,
        eqn: JaxprEqn,
        named: dict[Var, str],
        resting: dict[Var, Atom],
        editor: Editor,
    ) -> None:
        """Gives a block's backward pass what it saved, out of host memory."""
        operands = [editor.read(v) for v in eqn.invars]
        wanted = [i for i, v in enumerate(eqn.invars) if is_var(v) and v in named]
        # The gradient that arrives: the copy back need not be there before it is.
        arrays = [
            i
            for i, v in enumerate(eqn.invars)
            if is_var(v) and i not in wanted and is_array(v.aval)
        ]
        for i in wanted:
            var = eqn.invars[i]
            if var not in resting:
                (resting[var],) = editor.insert(
                    to_host, operands[i], like=eqn, scope=SCOPE
                )
            saved = [resting[var], *(operands[k] for k in arrays[-1:])]
            here = editor.tie(*saved, like=eqn, scope=SCOPE)[0]
            (operands[i],) = editor.insert(to_device, here, like=eqn, scope=SCOPE)
            self.moved.add(named[var])
        editor.copy(eqn, operands=operands)

    def _rewrite_scan(
        self, eqn: JaxprEqn, stacks: dict[Var, Var], editor: Editor
    ) -> None:
        """Lets the turns of a forward scan write what they save to host memory."""
        (part,) = bodies_of(eqn)
        jaxpr = self.rewrite(part.jaxpr)
        body = inner(jaxpr)
        named = self._named(body)
        _, num_carry = scan_counts(eqn.params)
        saved = [
            i
            for i, v in enumerate(body.outvars)
            if i >= num_carry and is_var(v) and v in named
        ]
        if saved:
            outs = list(body.outvars)
            inside = Editor(self._mesh)
            inside.eqns = list(body.eqns)
            for i in saved:
                self.moved.add(named[outs[i]])
                (outs[i],) = inside.insert(
                    to_host, outs[i], like=body.eqns[-1], scope=SCOPE
                )
            jaxpr = rebuild(jaxpr, eqns=inside.eqns, outvars=outs)
        if jaxpr is part.jaxpr:
            editor.copy(eqn)
            return
        new = eqn.replace(
            params=with_bodies(eqn, (part,), (jaxpr,)),
            invars=[editor.read(v) for v in eqn.invars],
            outvars=[
                self._stack(v, stacks) if i in saved else v
                for i, v in enumerate(eqn.outvars)
            ],
        )
        editor.append(new)

    def _stack(self, var: Var, stacks: dict[Var, Var]) -> Var:
        stacks[var] = fresh_var(abstract_on_host(var.aval))
        return stacks[var]

    def _read_stacks(
        self,
        eqn: JaxprEqn,
        held: Sequence[bool],
        stacks: dict[Var, Var],
        editor: Editor,
    ) -> None:
        """Lets an equation read stacks in host memory, a scan turn by turn."""
        num_consts, num_carry = (
            scan_counts(eqn.params) if eqn.primitive.name == "scan" else (0, 0)
        )
        if eqn.primitive.name != "scan" or any(held[: num_consts + num_carry]):
            operands = [
                self._on_device(v, eqn, stacks, editor) if h else editor.read(v)
                for v, h in zip(eqn.invars, held, strict=True)
            ]
            editor.copy(eqn, operands=operands)
            return
        body = self._fetching(jaxpr_callable(eqn.params["jaxpr"]), held)
        operands = [
            stacks.get(v, editor.read(v)) if is_var(v) else v for v in eqn.invars
        ]
        editor.insert(
            scan_by_number(eqn, body, held),
            *operands,
            like=eqn,
            scope=SCOPE,
            outs=eqn.outvars,
        )

    def _fetching(
        self, body: Callable[..., Sequence[Any]], held: Sequence[bool]
    ) -> Callable[..., Sequence[Any]]:
        def turn(*arrays: Any) -> Sequence[Any]:
            here = [to_device(x) if h else x for x, h in zip(arrays, held, strict=True)]
            return body(*here)

        return turn

    def _on_device(
        self, var: Var, eqn: JaxprEqn | None, stacks: dict[Var, Var], editor: Editor
    ) -> Var:
        return editor.insert(to_device, stacks[var], like=eqn, scope=SCOPE)[0]
