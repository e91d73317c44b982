"""Pass `offload`: leaves in host memory visit the device a window at a time.

What the step does with an offloaded leaf is split into *streams* (element-wise
arithmetic on it: the cast of a weight, the update of a parameter) and other uses. A
stream copies its leaves in, and its results that rest in host memory back; each waits
by a barrier until so many bytes of earlier ones are back in host memory, and a large
one runs tile by tile. Any other use gets a copy of its own, made when the activation
is there that it is combined with. Blocks and loop bodies fetch for themselves, a scan
over stacked layers layer by layer.

Source: ZeRO-Offload (arXiv 2101.06840), sections 3 and 4; `sub_group_size` and the
overlap of copies with compute after ZeRO-Infinity (arXiv 2104.07857), section 5. May
import: compat, ir, plan. Read next: `jzero/ir/streams.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
from jzero.compat.memory import abstract_on_host, is_on_host, to_device, to_host
from jzero.ir.bodies import REMAT_NAMES, bodies_of, with_bodies
from jzero.ir.edit import Editor
from jzero.ir.host_scan import scan_by_number
from jzero.ir.inline import inline_calls
from jzero.ir.order import in_order
from jzero.ir.rules import BARRIER, is_array
from jzero.ir.specs import Dims, to_dims
from jzero.ir.stream_kernel import HostCompute
from jzero.ir.stream_loop import StreamRun
from jzero.ir.streams import Stream, Streams, done_reading, find_streams
from jzero.ir.trace import TracedStep
from jzero.ir.windows import Window
from jzero.offload import Offload
from jzero.plan.plan import Plan

SCOPE = "jzero.offload"


def offload(step: TracedStep, plan: Plan) -> TracedStep:
    """Lets offloaded leaves visit the device where the step uses them.

    Args:
      step: the traced step, after the other passes.
      plan: its plan; a plan that offloads nothing changes nothing.

    Returns:
      The step with offloaded inputs and outputs in host memory; the same numbers.
    """
    if not any(leaf.is_on_host for leaf in plan.state):
        return step
    # An evaluation may meet a state that another step offloaded.
    settings = plan.config.offload or Offload(params="host")
    body = inner(step.jaxpr)
    is_in, is_out = [False] * len(body.invars), [False] * len(body.outvars)
    dims: dict[int, Dims] = {}
    replaces: dict[int, int] = {}
    for flat_in, flat_out, leaf in zip(
        step.state_ins, step.state_outs, plan.state, strict=True
    ):
        is_in[flat_in] = leaf.is_on_host
        dims[flat_in] = to_dims(leaf.spec, len(leaf.shape))
        if flat_out >= 0:
            is_out[flat_out] = leaf.is_on_host
            replaces[flat_out] = flat_in
    offloader = _Offloader(
        mesh=step.mesh,
        sizes=dict(plan.axis_sizes),
        window_bytes=settings.window_bytes,
        is_refetched=plan.placement.gather == "at_use",
        host=HostCompute.of(step, plan, settings),
    )
    return step.with_jaxpr(
        offloader.rewrite_step(step.jaxpr, is_in, is_out, dims, replaces)
    )


@dataclass(slots=True, kw_only=True)
class _Scope:
    """What is known of one body while it is rewritten."""

    editor: Editor
    window: Window
    body: AnyJaxpr
    streams: Streams
    on_host: set[Var]
    host_outs: frozenset[Var] = frozenset()
    replaces: dict[Var, Var] = field(default_factory=dict)
    dims: dict[Var, Dims] = field(default_factory=dict)
    is_paced: bool = True
    # result of a stream -> its copy in host memory
    rested: dict[Var, Atom] = field(default_factory=dict)

    def run_of(self, stream: Stream) -> StreamRun:
        """How a stream is run."""
        return StreamRun.of(
            stream,
            self.body,
            self.streams.made_at,
            host_outs=self.host_outs,
            replaces=self.replaces,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offloader:
    mesh: Mesh
    sizes: dict[str, int]
    window_bytes: int
    is_refetched: bool
    host: HostCompute | None

    def rewrite_step(
        self,
        jaxpr: AnyJaxpr,
        is_in: Sequence[bool],
        is_out: Sequence[bool],
        dims: dict[int, Dims],
        replaces: dict[int, int],
    ) -> AnyJaxpr:
        """Rewrites the whole step; see `offload`."""
        jaxpr = inline_calls(jaxpr, is_in)
        body = inner(jaxpr)
        host_outs = {
            v for v, f in zip(body.outvars, is_out, strict=True) if f and is_var(v)
        }
        scope = self._enter(jaxpr, is_in)
        scope.host_outs = frozenset(host_outs)
        scope.dims = {body.invars[i]: d for i, d in dims.items()}
        scope.replaces = {
            body.outvars[out]: body.invars[flat]
            for out, flat in replaces.items()
            if is_var(body.outvars[out])
        }
        return self._rewrite(jaxpr, scope, is_out)

    def _enter(self, jaxpr: AnyJaxpr, is_in: Sequence[bool]) -> _Scope:
        body = inner(jaxpr)
        inputs = [v for v, f in zip(body.invars, is_in, strict=True) if f]
        streams = find_streams(jaxpr, inputs)
        scope = _Scope(
            editor=Editor(self.mesh),
            window=Window(self.window_bytes),
            body=body,
            streams=streams,
            on_host={*inputs, *streams.aliases},
        )
        for var in scope.on_host:
            new = fresh_var(abstract_on_host(var.aval))
            scope.editor.rename(var, new)
        return scope

    def _rewrite_body(self, jaxpr: AnyJaxpr, is_in: Sequence[bool]) -> AnyJaxpr:
        """Rewrites the body of a block or loop, which returns nothing offloaded."""
        if not any(is_in):
            return jaxpr
        jaxpr = inline_calls(jaxpr, is_in)
        scope = self._enter(jaxpr, is_in)
        scope.is_paced = False
        return self._rewrite(jaxpr, scope, [False] * len(inner(jaxpr).outvars))

    def _rewrite(
        self, jaxpr: AnyJaxpr, scope: _Scope, is_out: Sequence[bool]
    ) -> AnyJaxpr:
        body, editor = scope.body, scope.editor
        # result of a stream that is made anew for each reader -> the stream
        refetched: dict[Var, Stream] = {}
        for stream in scope.streams.all:
            if self._is_made_per_reader(stream, scope):
                refetched.update(dict.fromkeys(stream.outs, stream))
            else:
                self._run_stream(stream, scope)
        for index, eqn in enumerate(body.eqns):
            if index not in scope.streams.members:
                self._rewrite_eqn(eqn, scope, refetched)
        outvars: list[Atom] = []
        for var, is_host in zip(body.outvars, is_out, strict=True):
            new = editor.read(var)
            if is_var(var) and var in scope.rested and (is_host or new is var):
                new = scope.rested[var]
            rests = is_on_host(getattr(new, "aval", None))
            # What the user's own program keeps on the host (an offload policy of
            # `jax.checkpoint`) stays there.
            is_host = is_host or is_on_host(getattr(var, "aval", None))
            if rests != is_host:
                move = to_host if is_host else to_device
                last = body.eqns[-1] if body.eqns else None
                new = editor.insert(move, new, like=last, scope=SCOPE)[0]
            outvars.append(new)
        return rebuild(
            jaxpr,
            eqns=in_order(editor.eqns),
            invars=[editor.read(v) for v in body.invars],
            outvars=outvars,
        )

    def _is_made_per_reader(self, stream: Stream, scope: _Scope) -> bool:
        """Whether to fetch anew for each use, as weights are gathered at use."""
        if not self.is_refetched or not scope.is_paced or len(stream.outs) != 1:
            return False
        inside = {*scope.streams.members, len(scope.body.eqns)}
        return inside.isdisjoint(scope.streams.readers[stream.outs[0]])

    # --- streams

    def _run_stream(self, stream: Stream, scope: _Scope) -> None:
        """Runs a stream when the window has room for it."""
        run = scope.run_of(stream)
        editor = scope.editor
        like = run.eqns[0]
        leaves = [editor.read(v) for v in stream.leaves]
        tiling = run.tiling(scope.dims, self.sizes, self.window_bytes)
        num_bytes = run.device_bytes(tiling)
        if scope.is_paced and self.host is None:
            guards = scope.window.guards(num_bytes)
            replaced = [run.reuses[v] for v in run.host_outs if v in run.reuses]
            done = done_reading(scope.body, scope.streams, replaced, stream.level)
            guards += [editor.read(v) for v in done]
            if guards:
                leaves = editor.tie(*leaves, *guards, like=like, scope=SCOPE)
        now = dict(zip(stream.leaves, leaves, strict=False))  # guards follow
        atoms = [now.get(v, editor.read(v)) for v in run.inputs]
        work = None if self.host is None else self.host.runs(run, scope.dims)
        if work is None and tiling is not None and tiling.num_tiles > 1:
            work = run.tiled(tiling)
        if work is None:
            outs = self._run_whole(run, now, scope)
        else:
            outs = editor.insert(work, *atoms, like=like, scope=SCOPE)
        for var, new in zip(stream.outs, outs, strict=True):
            if var not in run.host_outs:
                editor.rename(var, new)
                continue
            scope.rested[var] = new
            if editor.read(var) is var and self._is_read_again(var, scope):
                device = editor.insert(to_device, new, like=like, scope=SCOPE)[0]
                editor.rename(var, device)
        back = [scope.rested[v] for v in stream.outs if v in scope.rested]
        scope.window.add(num_bytes, back or outs)

    def _is_read_again(self, var: Var, scope: _Scope) -> bool:
        """Whether the body itself reads a result, and not in the stream it is of."""
        members, returned = scope.streams.members, len(scope.body.eqns)
        return any(
            i != returned and (i not in members or var not in members[i].outs)
            for i in scope.streams.readers[var]
        )

    def _run_whole(
        self, run: StreamRun, now: dict[Var, Atom], scope: _Scope
    ) -> list[Atom]:
        """Copies the leaves in, the equations of a stream, and its results back."""
        editor = scope.editor
        like = run.eqns[0]
        names: dict[Var, Atom] = {
            v: editor.insert(to_device, atom, like=like, scope=SCOPE)[0]
            for v, atom in now.items()
        }
        for eqn in run.eqns:
            operands = [
                names.get(v, editor.read(v)) if is_var(v) else v for v in eqn.invars
            ]
            out = fresh_var(eqn.outvars[0].aval)
            names[eqn.outvars[0]] = out
            editor.append(eqn.replace(invars=operands, outvars=[out]))
        outs: list[Atom] = []
        for var in run.stream.outs:
            editor.rename(var, names[var])
            outs.append(
                editor.insert(to_host, names[var], like=like, scope=SCOPE)[0]
                if var in run.host_outs
                else names[var]
            )
        return outs

    # --- other uses

    def _rewrite_eqn(
        self, eqn: JaxprEqn, scope: _Scope, refetched: dict[Var, Stream]
    ) -> None:
        editor = scope.editor
        used = [is_var(v) and v in scope.on_host for v in eqn.invars]
        if eqn.primitive.name == BARRIER:
            outs = [editor.read(v) if v in scope.on_host else v for v in eqn.outvars]
            operands = self._fetch_streams(eqn, scope, refetched, guards=())
            editor.append(eqn.replace(invars=operands, outvars=outs))
            return
        guards = self._companions(eqn, scope, refetched)
        operands = self._fetch_streams(eqn, scope, refetched, guards=guards)
        if not any(used):
            editor.copy(eqn, operands=operands)
            return
        name = eqn.primitive.name
        if name == "scan" and not self._carries(eqn, used):
            self._rewrite_scan(eqn, used, operands, scope)
        elif name in REMAT_NAMES:
            bodies = bodies_of(eqn)
            new = [self._rewrite_body(b.jaxpr, used) for b in bodies]
            params = with_bodies(eqn, bodies, new)
            editor.copy(eqn, operands=operands, params=params)
        else:
            for i, is_used in enumerate(used):
                if is_used:
                    operands[i] = self._fetch(operands[i], eqn, guards, scope)
            editor.copy(eqn, operands=operands)

    def _fetch(
        self, atom: Atom, eqn: JaxprEqn, guards: Sequence[Atom], scope: _Scope
    ) -> Var:
        """Copies a whole leaf to the device, once its companion is there."""
        editor = scope.editor
        if guards:
            atom = editor.tie(atom, *guards, like=eqn, scope=SCOPE)[0]
        return editor.insert(to_device, atom, like=eqn, scope=SCOPE)[0]

    def _companions(
        self, eqn: JaxprEqn, scope: _Scope, refetched: dict[Var, Stream]
    ) -> list[Atom]:
        """The activation that an equation combines with what is fetched for it."""
        if not scope.is_paced or bodies_of(eqn):
            return []
        for var in eqn.invars:
            is_fetched = is_var(var) and (var in scope.on_host or var in refetched)
            if is_var(var) and not is_fetched and is_array(var.aval):
                return [scope.editor.read(var)]
        return []

    def _fetch_streams(
        self,
        eqn: JaxprEqn,
        scope: _Scope,
        refetched: dict[Var, Stream],
        guards: Sequence[Atom],
    ) -> list[Atom]:
        """Operands of an equation, with those that are made anew for each reader."""
        editor = scope.editor
        operands = [editor.read(v) for v in eqn.invars]
        made: dict[Var, Atom] = {}
        for i, var in enumerate(eqn.invars):
            if not is_var(var) or var not in refetched:
                continue
            if var not in made:
                if eqn.primitive.name == BARRIER:
                    # A gather waits here: so does the copy that feeds it.
                    guards = [
                        editor.read(v)
                        for v in eqn.invars
                        if is_var(v) and v not in refetched and v not in scope.on_host
                    ]
                made[var] = self._make_for(refetched[var], guards, scope)
            operands[i] = made[var]
        return operands

    def _make_for(self, stream: Stream, guards: Sequence[Atom], scope: _Scope) -> Atom:
        editor = scope.editor
        run = scope.run_of(stream)
        leaves = [editor.read(v) for v in stream.leaves]
        if guards:
            leaves = editor.tie(*leaves, *guards, like=run.eqns[0], scope=SCOPE)
        now: dict[Var, Atom] = dict(zip(stream.leaves, leaves, strict=False))
        if self.host is None:
            return self._run_whole(run, now, scope)[0]
        atoms = [now.get(v, editor.read(v)) for v in run.inputs]
        return editor.insert(run.on_host, *atoms, like=run.eqns[0], scope=SCOPE)[0]

    # --- loops

    def _carries(self, eqn: JaxprEqn, used: Sequence[bool]) -> bool:
        num_consts, num_carry = scan_counts(eqn.params)
        return any(used[num_consts : num_consts + num_carry])

    def _rewrite_scan(
        self,
        eqn: JaxprEqn,
        used: Sequence[bool],
        operands: Sequence[Atom],
        scope: _Scope,
    ) -> None:
        """Scans over what lies in host memory by a number and a slice of the whole.

        As an operand that the loop takes apart, the compiler would copy the stack.
        """
        body = jaxpr_callable(self._rewrite_body(eqn.params["jaxpr"], used))
        run = scan_by_number(eqn, body, used)
        # Streams that come first read the results under their old names.
        scope.editor.insert(run, *operands, like=eqn, scope=SCOPE, outs=eqn.outvars)
