"""Pass `spread_batch`: a scan over micro-batches keeps every device busy.

A step that cuts its batch into micro-batches reshapes (batch, ...) to
(micro, batch / micro, ...) and scans over the first dim. The partitioner follows
the reshape and lays the *micro* dim over the devices, so each turn of the loop
would work on one device's rows and the others would repeat it. This pass
constrains the scanned arrays so that the dim behind the scanned one is split.

May import: ir, plan. Read next: `jzero/plan/batch.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from jzero.compat.jaxpr import AnyJaxpr, JaxprEqn, Var, inner, is_var
from jzero.ir.bodies import bodies_of, with_bodies
from jzero.ir.edit import Editor
from jzero.ir.rules import is_array, is_elementwise
from jzero.ir.specs import Dims, Entry, to_dims
from jzero.ir.trace import TracedStep
from jzero.plan.plan import Plan

SCOPE = "jzero.spread_batch"

# Rearrangements through which an array remains "the batch".
_KEEPS_BATCH = frozenset({"reshape", "transpose", "slice", "squeeze"})


def spread_batch(step: TracedStep, plan: Plan) -> TracedStep:
    """Splits every micro-batch of a scan over the batch axes.

    Args:
      step: the traced step.
      plan: its plan.

    Returns:
      The step with sharding constraints added; the same numbers.
    """
    axes = plan.batch_axes
    num_parts = 1
    for name, size in plan.axis_sizes:
        num_parts *= size if name in axes else 1
    if num_parts == 1:
        return step
    entry: Entry = axes[0] if len(axes) == 1 else tuple(axes)
    is_batch = [False] * len(inner(step.jaxpr).invars)
    for flat, leaf in zip(step.batch_ins, plan.batch, strict=True):
        # An array whose spec already leaves the scanned dim whole needs no help.
        dims = to_dims(leaf.spec, len(leaf.shape))
        is_batch[flat] = bool(dims) and dims[0] is not None
    spreader = _Spreader(step, entry, num_parts)
    return step.with_jaxpr(spreader.rewrite(step.jaxpr, is_batch))


class _Spreader:
    def __init__(self, step: TracedStep, entry: Entry, num_parts: int) -> None:
        self.mesh = step.mesh
        self.entry = entry
        self.num_parts = num_parts

    def rewrite(self, jaxpr: AnyJaxpr, is_batch: Sequence[bool]) -> AnyJaxpr:
        body = inner(jaxpr)
        batch = {v for v, b in zip(body.invars, is_batch, strict=True) if b}
        if not batch:
            return jaxpr
        editor = Editor(self.mesh)
        for eqn in body.eqns:
            self._rewrite_eqn(eqn, batch, editor)
        return editor.finish(jaxpr)

    def _rewrite_eqn(self, eqn: JaxprEqn, batch: set[Var], editor: Editor) -> None:
        flags = [is_var(v) and v in batch for v in eqn.invars]
        if not any(flags):
            editor.copy(eqn)
            return
        if is_elementwise(eqn) or eqn.primitive.name in _KEEPS_BATCH:
            batch.update(eqn.outvars)
            editor.copy(eqn)
            return
        bodies = bodies_of(eqn)
        if not bodies:
            editor.copy(eqn)
            return
        atoms = [editor.read(v) for v in eqn.invars]
        new = []
        for body in bodies:
            entered = [
                flags[s.index] and is_array(eqn.invars[s.index].aval) for s in body.ins
            ]
            for i, slot in enumerate(body.ins):
                if slot.is_stacked and flags[slot.index]:
                    dims = self._spread(eqn.invars[slot.index].aval.shape)
                    if dims is not None:
                        atoms[slot.index] = editor.constrain(
                            atoms[slot.index], dims, like=eqn, scope=SCOPE
                        )
                    entered[i] = False
            new.append(self.rewrite(body.jaxpr, entered))
        is_same = all(n is b.jaxpr for n, b in zip(new, bodies, strict=True))
        params = None if is_same else with_bodies(eqn, bodies, new)
        editor.copy(eqn, operands=atoms, params=params)

    def _spread(self, shape: tuple[int, ...]) -> Dims | None:
        if len(shape) < 2 or shape[1] % self.num_parts:
            return None
        return (None, self.entry) + (None,) * (len(shape) - 2)
