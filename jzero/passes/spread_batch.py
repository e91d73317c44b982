"""Pass `spread_batch`: inside loops, every device keeps its own rows.

Two things go wrong in a loop without it. A step that cuts its batch into
micro-batches reshapes (batch, ...) to (micro, batch / micro, ...) and scans over
the first dim; the partitioner follows the reshape and lays the *micro* dim over
the devices, so that each turn works on one device's rows. And the activations
that a loop carries have no placement of their own, so the constraint on a
gradient in the body may decide it. This pass constrains scanned and carried
arrays to be split along their batch dim.

May import: ir, plan. Read next: `jzero/ir/batch_dims.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from jzero.compat.jaxpr import AnyJaxpr, JaxprEqn, Var, inner, is_var
from jzero.ir.batch_dims import BatchDims, OptionalDim, read_dims
from jzero.ir.bodies import LOOP_NAMES, Body, bodies_of, with_bodies
from jzero.ir.edit import Editor
from jzero.ir.rules import CONSTRAINT
from jzero.ir.trace import BatchSplit, TracedStep, batch_split, input_batch_dims
from jzero.plan.plan import Plan

SCOPE = "jzero.spread_batch"


def spread_batch(step: TracedStep, plan: Plan) -> TracedStep:
    """Splits what loops scan and carry along its batch dim.

    Args:
      step: the traced step.
      plan: its plan.

    Returns:
      The step with sharding constraints added; the same numbers.
    """
    split = batch_split(plan)
    if split.num_parts == 1:
        return step
    spreader = _Spreader(step, split)
    return step.with_jaxpr(spreader.rewrite(step.jaxpr, input_batch_dims(step, plan)))


class _Spreader:
    def __init__(self, step: TracedStep, split: BatchSplit) -> None:
        self.mesh = step.mesh
        self.split = split
        self.batch_dims = BatchDims()

    def rewrite(
        self,
        jaxpr: AnyJaxpr,
        in_dims: Sequence[OptionalDim],
        *,
        is_loop: bool = False,
    ) -> AnyJaxpr:
        """Returns the body with its rows, and those of its loops, in place."""
        body = inner(jaxpr)
        found = self.batch_dims.of(jaxpr, in_dims)
        if not found:
            return jaxpr
        editor = Editor(self.mesh)
        placed = _constrained(body)
        if is_loop and body.eqns:
            for var in body.invars:
                if var in found and var not in placed:
                    self._pin(var, found[var], editor, body.eqns[0])
        for eqn in body.eqns:
            self._rewrite_eqn(eqn, found, placed, editor)
        return editor.finish(jaxpr)

    def _pin(self, var: Var, dim: int, editor: Editor, like: JaxprEqn) -> Var:
        dims = self.split.dims(var.aval.shape, dim)
        atom = editor.read(var)
        if dims is None:
            return atom
        pinned = editor.constrain(atom, dims, like=like, scope=SCOPE)
        editor.rename(var, pinned)
        return pinned

    def _rewrite_eqn(
        self, eqn: JaxprEqn, found: dict[Var, int], placed: set[Var], editor: Editor
    ) -> None:
        dims = read_dims(eqn, found)
        bodies = bodies_of(eqn) if any(d is not None for d in dims) else ()
        if not bodies:
            editor.copy(eqn)
            return
        atoms = [editor.read(v) for v in eqn.invars]
        is_loop = eqn.primitive.name in LOOP_NAMES
        new = []
        for body in bodies:
            for index in _cut_from_batch(body, dims):
                var = eqn.invars[index]
                if is_var(var) and var not in placed:
                    spread = self.split.dims(var.aval.shape, 1)
                    if spread is not None:
                        whole = (None, *spread[1:])
                        atoms[index] = editor.constrain(
                            atoms[index], whole, like=eqn, scope=SCOPE
                        )
            entered = self.batch_dims.enter(body, dims)
            new.append(self.rewrite(body.jaxpr, entered, is_loop=is_loop))
        is_same = all(n is b.jaxpr for n, b in zip(new, bodies, strict=True))
        params = None if is_same else with_bodies(eqn, bodies, new)
        editor.copy(eqn, operands=atoms, params=params)


def _cut_from_batch(body: Body, dims: Sequence[OptionalDim]) -> list[int]:
    """Operands whose scanned dim is a part of the batch dim."""
    return [s.index for s in body.ins if s.is_stacked and dims[s.index] == 0]


def _constrained(body: AnyJaxpr) -> set[Var]:
    """Values that a constraint places or has placed already."""
    placed: set[Var] = set()
    for eqn in body.eqns:
        if eqn.primitive.name == CONSTRAINT:
            placed.update(v for v in (*eqn.invars, *eqn.outvars) if is_var(v))
    return placed
