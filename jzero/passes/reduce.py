"""Pass `reduce_at_birth`: constrain each gradient where it is produced.

A gradient that will only be needed as a shard is constrained to that shard's
spec right behind the equation that produces it, inside loop and remat bodies
too. The partitioner then has partial sums in hand and emits a reduce-scatter
where it would otherwise all-reduce the whole gradient and keep it.

Source: ZeRO (arXiv 1910.02054), section 5.2, "P_g". May import: ir, plan. Read
next: `jzero/ir/demands.py`, which finds the births.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.sharding import Mesh

from jzero.compat.jaxpr import AnyJaxpr, JaxprEqn, Var, inner, is_var
from jzero.ir.bodies import bodies_of, with_bodies
from jzero.ir.demands import Demands, OptionalDims, same_shape
from jzero.ir.edit import Editor
from jzero.ir.marks import Analysis, Mark, enter_marks, read_marks
from jzero.ir.partitioned import read_shardwise
from jzero.ir.rules import BARRIER, CONSTRAINT, constrained_dims, is_elementwise
from jzero.ir.specs import Dims
from jzero.ir.trace import TracedStep, input_marks, output_dims
from jzero.plan.plan import Plan

SCOPE = "jzero.reduce"


def reduce_at_birth(step: TracedStep, plan: Plan) -> TracedStep:
    """Constrains gradients to their shards where they are produced.

    Args:
      step: the traced step.
      plan: its plan; stage 0 changes nothing.

    Returns:
      The step with sharding constraints added; the same numbers.
    """
    if plan.placement.reduce != "at_birth":
        return step
    reducer = _Reducer(step.mesh)
    marks, outs = input_marks(step, plan), output_dims(step, plan)
    return step.with_jaxpr(reducer.rewrite(step.jaxpr, marks, outs))


class _Reducer:
    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.analysis = Analysis()
        self.demands = Demands(self.analysis)

    def rewrite(
        self,
        jaxpr: AnyJaxpr,
        in_marks: Sequence[Mark | None],
        out_dims: OptionalDims,
    ) -> AnyJaxpr:
        body = inner(jaxpr)
        marks = self.analysis.flow(jaxpr, in_marks).marks
        wanted = self.demands.of(jaxpr, in_marks, out_dims).dims
        if not wanted:
            return jaxpr
        editor = Editor(self.mesh)
        borrowed = _Borrowed(editor, set(body.invars) | set(body.constvars), wanted)
        for eqn in body.eqns:
            operands = borrowed.operands(eqn, marks, wanted)
            editor.copy(eqn, operands=operands, params=self._params(eqn, marks, wanted))
            if _passes_on(eqn) or bodies_of(eqn):
                continue
            for var in eqn.outvars:
                dims = wanted.get(var)
                if dims is not None and not _is_placed(eqn, dims):
                    shard = editor.constrain(var, dims, like=eqn, scope=SCOPE)
                    editor.rename(var, shard)
        return editor.finish(jaxpr)

    def _params(
        self, eqn: JaxprEqn, marks: dict[Var, Mark], wanted: dict[Var, Dims]
    ) -> dict[str, object] | None:
        """New parameters if a body of the equation changed."""
        bodies = bodies_of(eqn)
        operands = read_marks(eqn, marks)
        outs = [wanted.get(v) for v in eqn.outvars]
        if not bodies or not any(x is not None for x in (*operands, *outs)):
            return None
        entered = self.demands.enter(eqn, bodies, operands, outs)
        new = [
            self.rewrite(body.jaxpr, enter_marks(body, entered.marks), out_dims)
            for body, out_dims in zip(bodies, entered.out_dims, strict=True)
        ]
        if all(n is b.jaxpr for n, b in zip(new, bodies, strict=True)):
            return None
        return with_bodies(eqn, bodies, new)


class _Borrowed:
    """Wanted inputs of a body, constrained only for the readers that want them.

    An input has no birth here, and its other readers may need it whole: a
    replicated parameter is used by the model and updated as a shard.
    """

    def __init__(
        self, editor: Editor, inputs: set[Var], wanted: dict[Var, Dims]
    ) -> None:
        self.editor = editor
        self.inputs = {v for v in inputs if v in wanted}
        self.shards: dict[Var, Var] = {}

    def operands(
        self, eqn: JaxprEqn, marks: dict[Var, Mark], wanted: dict[Var, Dims]
    ) -> list[object]:
        new = [self.editor.read(v) for v in eqn.invars]
        if not self.inputs:
            return new
        is_named = read_shardwise(eqn) is not None
        if not is_named and not is_elementwise(eqn):
            return new
        out = eqn.outvars[0]
        if not any(v in marks or v in wanted for v in eqn.outvars):
            return new
        for i, atom in enumerate(eqn.invars):
            is_alike = is_named or same_shape(atom, out)
            if is_var(atom) and atom in self.inputs and is_alike:
                if atom not in self.shards:
                    self.shards[atom] = self.editor.constrain(
                        atom, wanted[atom], like=eqn, scope=SCOPE
                    )
                new[i] = self.shards[atom]
        return new


def _passes_on(eqn: JaxprEqn) -> bool:
    return (
        is_elementwise(eqn)
        or eqn.primitive.name == BARRIER
        or eqn.primitive.name == "transpose"
        or read_shardwise(eqn) is not None
    )


def _is_placed(eqn: JaxprEqn, dims: Dims) -> bool:
    """Says whether the producer already is the constraint that would be added."""
    return eqn.primitive.name == CONSTRAINT and constrained_dims(eqn) == dims
