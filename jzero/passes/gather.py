"""Pass `gather_at_use`: weights are whole only where they are used.

Each sharded leaf is followed forward. Element-wise equations, reductions and
rearrangements work on the shard. Any other equation sees the whole array: it is
constrained to the leaf's base spec right before, after the model's own cast, so
that 16-bit bytes move. With `gather="once"` (stages 1 and 2) a weight is gathered
in one place and handed into remat and loop bodies whole; with `"at_use"` (stage
3) every body gathers its own, and outside of them a gathered weight is dropped
once `reuse_window_bytes` of others came after it.

Source: ZeRO (arXiv 1910.02054), section 5.3, "P_p". May import: ir, plan. Read
next: `jzero/ir/uses.py`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jax import numpy as jnp
from jax.sharding import Mesh

from jzero.compat.jaxpr import (
    AnyJaxpr,
    Atom,
    JaxprEqn,
    Var,
    fresh_var,
    inner,
    is_var,
)
from jzero.ir.align import align, align_named
from jzero.ir.bodies import LOOP_NAMES, REMAT_NAMES, Body, bodies_of, with_bodies
from jzero.ir.edit import Editor
from jzero.ir.marks import Analysis, Mark, enter_marks, read_marks
from jzero.ir.partitioned import read_shardwise
from jzero.ir.rules import (
    BARRIER,
    CAST,
    CONSTRAINT,
    is_array,
    is_elementwise,
    is_reduction,
    keeps_elements,
)
from jzero.ir.trace import TracedStep, input_marks
from jzero.ir.uses import WHOLE, Uses
from jzero.plan.plan import Plan

SCOPE = "jzero.gather"

Retypes = tuple[Any, ...]


def gather_at_use(step: TracedStep, plan: Plan) -> TracedStep:
    """Gathers each sharded leaf where the model needs it whole.

    Args:
      step: the traced step.
      plan: its plan; a stage that shards no leaf changes nothing.

    Returns:
      The step with constraints and barriers added; the same numbers.
    """
    marks = input_marks(step, plan)
    if all(m is None for m in marks):
        return step
    gatherer = _Gatherer(
        mesh=step.mesh,
        reuse_window_bytes=plan.config.reuse_window_bytes,
        prefetch_bytes=plan.config.prefetch_bytes,
        is_cast_first=plan.config.gather_dtype == "compute",
        uses=Uses(scope=SCOPE, is_at_use=plan.placement.gather == "at_use"),
    )
    keep = (True,) * len(inner(step.jaxpr).outvars)
    return step.with_jaxpr(gatherer.rewrite(step.jaxpr, marks, keep))


@dataclass(slots=True, kw_only=True)
class _Scope:
    """What is gathered in one body at the present equation."""

    editor: Editor
    marks: dict[Var, Mark]
    is_remat: bool
    is_loop: bool
    window_bytes: int
    # key -> (whole value, its bytes), least recently used first
    live: OrderedDict[Any, tuple[Var, int]] = field(default_factory=OrderedDict)
    seen: set[Any] = field(default_factory=set)
    # (bytes gathered before it, activation), oldest first
    paced: deque[tuple[int, Var]] = field(default_factory=deque)
    gathered_bytes: int = 0
    # rearranged shard -> the equation that made it
    moved: dict[Var, JaxprEqn] = field(default_factory=dict)
    # rearranged shard -> (gathered source, the same rearrangement of it)
    moved_wholes: dict[Var, tuple[Var, Var]] = field(default_factory=dict)
    retyped: set[Var] = field(default_factory=set)

    def evict(self) -> None:
        """Forgets the oldest gathered values beyond the window."""
        total = sum(n for _, n in self.live.values())
        while total > self.window_bytes:
            total -= self.live.popitem(last=False)[1][1]


@dataclass(slots=True, kw_only=True)
class _Gatherer:
    mesh: Mesh
    reuse_window_bytes: int
    prefetch_bytes: int
    is_cast_first: bool
    analysis: Analysis = field(default_factory=Analysis)
    uses: Uses

    def rewrite(
        self,
        jaxpr: AnyJaxpr,
        in_marks: Sequence[Mark | None],
        keep: Sequence[bool],
        *,
        retypes: Retypes = (),
        is_remat: bool = False,
        is_loop: bool = False,
    ) -> AnyJaxpr:
        """Returns the body with gathers inserted.

        Args:
          jaxpr: the body.
          in_marks: marks of its inputs.
          keep: per output, whether a shard may leave as one.
          retypes: per input, the dtype in which it now arrives, or None; such
            an input is only ever cast to that dtype.
          is_remat: the body is recomputed as one unit, so what it gathered
            serves until its end.
          is_loop: the body lies in a loop.
        """
        body = inner(jaxpr)
        editor = Editor(self.mesh)
        flow = self.analysis.flow(jaxpr, in_marks)
        scope = _Scope(
            editor=editor,
            marks=dict(flow.marks),
            is_remat=is_remat,
            is_loop=is_loop,
            window_bytes=self.reuse_window_bytes,
        )
        invars = self._retype_inputs(body, retypes, scope)
        for eqn in body.eqns:
            self._rewrite_eqn(eqn, scope)
        last = body.eqns[-1] if body.eqns else None
        for var, is_kept in zip(body.outvars, keep, strict=True):
            if is_var(var) and var in scope.marks and not is_kept:
                editor.rename(var, self._whole(var, scope, last))
        return editor.finish(jaxpr, invars=invars)

    def _retype_inputs(
        self, body: AnyJaxpr, retypes: Retypes, scope: _Scope
    ) -> list[Var]:
        invars = list(body.invars)
        for i, dtype in enumerate(retypes):
            if dtype is not None:
                old = invars[i]
                invars[i] = fresh_var(old.aval.update(dtype=dtype, weak_type=False))
                scope.editor.rename(old, invars[i])
                scope.retyped.add(old)
        return invars

    def _rewrite_eqn(self, eqn: JaxprEqn, scope: _Scope) -> None:
        editor = scope.editor
        operands = read_marks(eqn, scope.marks)
        has_retyped = bool(scope.retyped) and any(
            is_var(v) and v in scope.retyped for v in eqn.invars
        )
        if eqn.primitive.name == CAST and has_retyped:
            editor.rename(eqn.outvars[0], editor.read(eqn.invars[0]))
            return
        if all(m is None for m in operands) and not has_retyped:
            editor.copy(eqn)
            return
        if bodies := bodies_of(eqn):
            self._rewrite_bodies(eqn, bodies, operands, scope)
        elif is_elementwise(eqn):
            editor.copy(eqn, operands=align(editor, eqn, operands, scope=SCOPE))
        elif shardwise := read_shardwise(eqn):
            aligned = align_named(editor, eqn, shardwise, operands, scope=SCOPE)
            editor.copy(eqn, operands=aligned)
        elif (
            # A constraint says itself where its operand shall lie.
            eqn.primitive.name in (BARRIER, CONSTRAINT)
            or is_reduction(eqn)
            or any(v in scope.marks for v in eqn.outvars)
        ):
            editor.copy(eqn)
            if keeps_elements(eqn):
                scope.moved[eqn.outvars[0]] = eqn
        else:
            editor.copy(
                eqn,
                operands=[
                    editor.read(v) if m is None else self._whole(v, scope, eqn)
                    for v, m in zip(eqn.invars, operands, strict=True)
                ],
            )

    def _whole(self, var: Var, scope: _Scope, eqn: JaxprEqn | None) -> Var:
        """Returns the gathered value of a marked variable."""
        mark = scope.marks[var]
        editor = scope.editor
        if var in scope.moved:
            return self._whole_then_move(var, scope, eqn)
        narrow = self._narrowest(mark)
        if narrow < len(mark.casts):
            return self._whole_then_cast(mark, narrow, scope, eqn)
        key = mark.key
        if key in scope.live:
            scope.live.move_to_end(key)
            return scope.live[key][0]
        source = editor.read(var)
        guards = [source]
        if eqn is not None and not mark.is_once:
            num_bytes = var.aval.size * var.aval.dtype.itemsize
            guards += self._pace(eqn, num_bytes, scope, is_again=key in scope.seen)
        # The audit reads the leaf's number back out of the compiled program.
        scope_name = f"{SCOPE}/jzero.leaf{mark.leaf}"
        if len(guards) > 1 or mark.casts:
            # Also keeps the compiler from moving the cast behind the gather.
            source = editor.tie(*guards, like=eqn, scope=scope_name)[0]
        whole = editor.constrain(source, mark.base, like=eqn, scope=scope_name)
        scope.seen.add(key)
        scope.live[key] = (whole, var.aval.size * var.aval.dtype.itemsize)
        if not mark.is_once and not scope.is_remat:
            scope.evict()
        return whole

    def _narrowest(self, mark: Mark) -> int:
        """Number of the casts to make before the gather: fewest bytes move."""
        if not mark.casts or mark.root is None:
            return len(mark.casts)
        if not self.is_cast_first:
            return 0
        names = (str(mark.root.aval.dtype), *mark.casts)
        sizes = [jnp.dtype(name).itemsize for name in names]
        return max(i for i, n in enumerate(sizes) if n == min(sizes))

    def _whole_then_cast(
        self, mark: Mark, narrow: int, scope: _Scope, eqn: JaxprEqn | None
    ) -> Var:
        """Gathers an earlier link of the cast chain, then casts the whole."""
        assert mark.root is not None
        var = mark.root
        for name in mark.casts[:narrow]:
            var = self._cast_shard(var, name, scope, eqn)
        whole = self._whole(var, scope, eqn)
        for name in mark.casts[narrow:]:
            whole = _cast(scope.editor, whole, name, eqn)
        return whole

    def _whole_then_move(self, var: Var, scope: _Scope, eqn: JaxprEqn | None) -> Var:
        """Gathers what was rearranged: one gather serves a table and its transpose."""
        made = scope.moved[var]
        whole = self._whole(made.invars[0], scope, eqn)
        known = scope.moved_wholes.get(var)
        if known is None or known[0] is not whole:
            operands = [whole, *made.invars[1:]]
            (moved,) = scope.editor.repeat(made, operands, scope=SCOPE)
            known = scope.moved_wholes[var] = (whole, moved)
        return known[1]

    def _cast_shard(
        self, var: Var, dtype: str, scope: _Scope, eqn: JaxprEqn | None
    ) -> Var:
        mark = scope.marks[var]
        shard = _cast(scope.editor, scope.editor.read(var), dtype, eqn)
        scope.marks[shard] = replace(mark, casts=(*mark.casts, dtype))
        return shard

    def _pace(
        self, eqn: JaxprEqn, num_bytes: int, scope: _Scope, *, is_again: bool
    ) -> list[Atom]:
        """Chooses the activation that a gather must wait for.

        Without one the compiler may gather every layer's weights at the start of
        the step, and merges a second gather of a value with the first. In a loop
        the turns themselves keep gathers apart.
        """
        companion = self._companion(eqn, scope)
        if companion is None or (scope.is_loop and not is_again):
            return []
        if not is_again:
            scope.paced.append((scope.gathered_bytes, companion))
            scope.gathered_bytes += num_bytes
            earliest = scope.gathered_bytes - self.prefetch_bytes
            while len(scope.paced) > 1 and scope.paced[0][0] < earliest:
                scope.paced.popleft()
            companion = scope.paced[0][1]
        return [scope.editor.read(companion)]

    def _companion(self, eqn: JaxprEqn, scope: _Scope) -> Var | None:
        """The activation that an equation combines with a gathered weight."""
        for atom in eqn.invars:
            if is_var(atom) and atom not in scope.marks and is_array(atom.aval):
                return atom
        return None

    def _rewrite_bodies(
        self,
        eqn: JaxprEqn,
        bodies: Sequence[Body],
        operands: Sequence[Mark | None],
        scope: _Scope,
    ) -> None:
        editor = scope.editor
        settled = list(self.analysis.settle_carries(bodies, operands))
        atoms: list[Atom] = [editor.read(v) for v in eqn.invars]
        retypes: list[Any] = [None] * len(atoms)
        carried = {b.ins[i].index for b in bodies for i, _ in b.carries}
        budget_bytes = self.reuse_window_bytes
        counted: set[tuple[Var, str]] = set()
        for i, var in enumerate(eqn.invars):
            if is_var(var) and var in scope.retyped:
                retypes[i] = atoms[i].aval.dtype
                continue
            mark = operands[i]
            if mark is None:
                continue
            if settled[i] is None:
                atoms[i] = self._whole(var, scope, eqn)
                continue
            form = None if i in carried else self.uses.sole_form(bodies, i)
            if form is None:
                continue
            is_loop_const = eqn.primitive.name in LOOP_NAMES and not any(
                s.is_stacked for b in bodies for s in b.ins if s.index == i
            )
            whole_bytes = _form_bytes(var, form)
            if not mark.is_once:
                # At stage 3 only a small weight that every turn of a loop reads
                # is gathered before it.
                if (var, form) in counted:  # one array in two places
                    whole_bytes = 0
                if not is_loop_const or whole_bytes > budget_bytes:
                    continue
                budget_bytes -= whole_bytes
                counted.add((var, form))
            settled[i] = None
            if form == WHOLE:
                atoms[i] = self._whole(var, scope, eqn)
            else:
                atoms[i] = self._whole_as(var, form, scope, eqn)
                retypes[i] = jnp.dtype(form)
        is_remat = scope.is_remat or eqn.primitive.name in REMAT_NAMES
        new = []
        for body in bodies:
            outs = [
                s.index >= 0 and eqn.outvars[s.index] in scope.marks for s in body.outs
            ]
            new.append(
                self.rewrite(
                    body.jaxpr,
                    enter_marks(body, settled),
                    outs,
                    retypes=tuple(retypes[s.index] for s in body.ins),
                    is_remat=is_remat,
                    is_loop=scope.is_loop or eqn.primitive.name in LOOP_NAMES,
                )
            )
        is_same = all(n is b.jaxpr for n, b in zip(new, bodies, strict=True))
        params = None if is_same else with_bodies(eqn, bodies, new)
        editor.copy(eqn, operands=atoms, params=params)

    def _whole_as(self, var: Var, dtype: str, scope: _Scope, eqn: JaxprEqn) -> Var:
        """Casts the shard, then gathers it; shared with the model's own casts."""
        mark = scope.marks[var]
        key = (mark.root, (*mark.casts, dtype))
        if key in scope.live:
            scope.live.move_to_end(key)
            return scope.live[key][0]
        if not self.is_cast_first:
            return _cast(scope.editor, self._whole(var, scope, eqn), dtype, eqn)
        return self._whole(self._cast_shard(var, dtype, scope, eqn), scope, eqn)


def _cast(editor: Editor, atom: Atom, dtype: str, eqn: JaxprEqn | None) -> Var:
    return editor.insert(lambda x: x.astype(dtype), atom, like=eqn, scope=SCOPE)[0]


def _form_bytes(var: Var, form: str) -> int:
    dtype = var.aval.dtype if form == WHOLE else jnp.dtype(form)
    return var.aval.size * dtype.itemsize
