"""Pass `window`: only so many bytes of whole gradients are alive at a time.

Without it the compiler is free to compute every layer's gradient first and to
reduce them all at the end of the step. In an unrolled backward pass this ties
the reduce-scattered shards to the activation gradient that the next layer
continues from: once more than `reduce_window_bytes` of whole gradients have
been produced, the backward pass waits until they have been reduced.

Source: ZeRO (arXiv 1910.02054), section 5.2, where reduction happens in buckets
during backward. May import: ir, plan. Read next: `jzero/ir/demands.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax import numpy as jnp
from jax.sharding import Mesh

from jzero.compat.jaxpr import AnyJaxpr, DropVar, JaxprEqn, Var, inner
from jzero.ir.batch_dims import BatchDims, OptionalDim, read_dims
from jzero.ir.bodies import REMAT_NAMES, bodies_of, with_bodies
from jzero.ir.demands import Demands, OptionalDims
from jzero.ir.edit import Editor
from jzero.ir.marks import Analysis, Mark, enter_marks, read_marks
from jzero.ir.partitioned import read_shardwise
from jzero.ir.rules import BARRIER, CONSTRAINT, is_elementwise
from jzero.ir.specs import Dims
from jzero.ir.trace import (
    BatchSplit,
    TracedStep,
    batch_split,
    input_batch_dims,
    input_marks,
    output_dims,
)
from jzero.plan.plan import Plan

SCOPE = "jzero.window"


def window(step: TracedStep, plan: Plan) -> TracedStep:
    """Bounds the bytes of whole gradients that wait to be reduced.

    Args:
      step: the traced step, gradients already constrained at birth.
      plan: its plan; a stage without a window changes nothing.

    Returns:
      The step with barriers added; the same numbers.
    """
    if not plan.placement.window:
        return step
    windower = _Windower(step.mesh, plan.config.reduce_window_bytes, batch_split(plan))
    # Gradients of leaves that stay whole count too: a bias gradient that waits
    # for the end of the step keeps the whole activation gradient it sums.
    marks = input_marks(step, plan, has_whole=True)
    outs = output_dims(step, plan)
    rows = input_batch_dims(step, plan)
    return step.with_jaxpr(windower.rewrite(step.jaxpr, marks, outs, rows))


class _Windower:
    def __init__(self, mesh: Mesh, window_bytes: int, split: BatchSplit) -> None:
        self.mesh = mesh
        self.split = split
        self.batch_dims = BatchDims()
        self.window_bytes = window_bytes
        self.analysis = Analysis()
        self.demands = Demands(self.analysis)

    def rewrite(
        self,
        jaxpr: AnyJaxpr,
        in_marks: Sequence[Mark | None],
        out_dims: OptionalDims,
        in_rows: Sequence[OptionalDim],
    ) -> AnyJaxpr:
        body = inner(jaxpr)
        marks = self.analysis.flow(jaxpr, in_marks).marks
        wanted = self.demands.of(jaxpr, in_marks, out_dims).dims
        if not wanted:
            return jaxpr
        rows = self.batch_dims.of(jaxpr, in_rows)
        births = [self._born(eqn, wanted) for eqn in body.eqns]
        reach = _reach(body, births)
        editor = Editor(self.mesh)
        waiting: list[tuple[Var, int]] = []
        for index, eqn in enumerate(body.eqns):
            editor.copy(eqn, params=self._params(eqn, marks, wanted, rows))
            if eqn.primitive.name == BARRIER:
                # Tied already, by an earlier run of this pass.
                tied = set(eqn.invars)
                waiting = [(v, n) for v, n in waiting if v not in tied]
                continue
            waiting += births[index]
            if sum(n for _, n in waiting) < self.window_bytes:
                continue
            onward = _onward(eqn, index, reach, wanted, rows)
            following = body.eqns[index + 1 : index + 3]
            if onward is None or any(_reads(e, onward) for e in following):
                continue
            self._tie(editor, eqn, onward, rows[onward], waiting)
            waiting = []
        return editor.finish(jaxpr)

    def _born(self, eqn: JaxprEqn, wanted: dict[Var, Dims]) -> list[tuple[Var, int]]:
        """Gradients that this equation yields, with their whole bytes."""
        if is_elementwise(eqn) or eqn.primitive.name in (BARRIER, "transpose"):
            return []
        if read_shardwise(eqn) is not None:
            return []
        return [
            (v, v.aval.size * v.aval.dtype.itemsize) for v in eqn.outvars if v in wanted
        ]

    def _params(
        self,
        eqn: JaxprEqn,
        marks: dict[Var, Mark],
        wanted: dict[Var, Dims],
        rows: dict[Var, int],
    ) -> dict[str, object] | None:
        # A remat body is one unit to its user; inside, the compiler does better by
        # itself: a barrier there kept gathered weights alive beside gradients.
        bodies = bodies_of(eqn) if eqn.primitive.name not in REMAT_NAMES else ()
        operands = read_marks(eqn, marks)
        outs = [wanted.get(v) for v in eqn.outvars]
        if not bodies or not any(x is not None for x in (*operands, *outs)):
            return None
        row_dims = read_dims(eqn, rows)
        entered = self.demands.enter(eqn, bodies, operands, outs)
        new = [
            self.rewrite(
                body.jaxpr,
                enter_marks(body, entered.marks),
                out_dims,
                self.batch_dims.enter(body, row_dims),
            )
            for body, out_dims in zip(bodies, entered.out_dims, strict=True)
        ]
        if all(n is b.jaxpr for n, b in zip(new, bodies, strict=True)):
            return None
        return with_bodies(eqn, bodies, new)

    def _tie(
        self,
        editor: Editor,
        eqn: JaxprEqn,
        onward: Var,
        batch_dim: int,
        waiting: Sequence[tuple[Var, int]],
    ) -> None:
        # Without a placement of its own the activation may take that of the
        # gradients it is tied to, and be moved between devices for nothing.
        dims = self.split.dims(onward.aval.shape, batch_dim)
        if dims is not None:
            pinned = editor.constrain(editor.read(onward), dims, like=eqn, scope=SCOPE)
            editor.rename(onward, pinned)
        olds = [onward, *(v for v, _ in waiting)]
        news = editor.tie(*[editor.read(v) for v in olds], like=eqn, scope=SCOPE)
        for old, new in zip(olds, news, strict=True):
            editor.rename(old, new)


def _reads(eqn: JaxprEqn, var: Var) -> bool:
    """Says whether a barrier or constraint of an earlier run holds `var`."""
    return eqn.primitive.name in (BARRIER, CONSTRAINT) and var in eqn.invars


def _reach(
    body: AnyJaxpr, births: Sequence[Sequence[tuple[Var, int]]]
) -> dict[Var, int]:
    """For each variable, the last equation with a birth that depends on it."""
    reach: dict[Var, int] = {}
    for index in range(len(body.eqns) - 1, -1, -1):
        eqn = body.eqns[index]
        furthest = max((reach.get(v, -1) for v in eqn.outvars), default=-1)
        if births[index]:
            furthest = max(furthest, index)
        for atom in eqn.invars:
            if isinstance(atom, Var) and furthest > reach.get(atom, -1):
                reach[atom] = furthest
    return reach


def _onward(
    eqn: JaxprEqn,
    index: int,
    reach: dict[Var, int],
    wanted: dict[Var, Dims],
    rows: dict[Var, int],
) -> Var | None:
    """The activation from which the backward pass continues to later gradients."""
    if eqn.primitive.name in (CONSTRAINT, BARRIER) or is_elementwise(eqn):
        return None
    found = [
        v
        for v in eqn.outvars
        if not isinstance(v, DropVar)
        and v not in wanted
        and v in rows
        and len(v.aval.shape) >= 2
        and jnp.issubdtype(v.aval.dtype, jnp.inexact)
        and reach.get(v, -1) > index
    ]
    return max(found, key=lambda v: reach[v], default=None)
