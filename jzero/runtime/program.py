"""A rewritten step under `jax.jit`, for one structure and shape of arguments.

Lives here: `Program`, and `wrap_program`, which makes it of a rewritten jaxpr.
May import: runtime, ir, plan. Read next: `build.py`, which makes the jaxpr.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jzero.compat.jaxpr import inner, jaxpr_callable
from jzero.compat.jit import with_trees
from jzero.compat.lowered import rest_on_host
from jzero.compat.memory import is_on_host, to_host
from jzero.ir.trace import TracedStep
from jzero.plan.plan import Plan
from jzero.runtime.calls import StepFunction
from jzero.runtime.collector import collector_paused
from jzero.runtime.match import Matched
from jzero.runtime.mesh import tracing_context
from jzero.runtime.placement import sharding_of
from jzero.runtime.tracing import TracedCall, strong


class Executable:
    """A jitted step for given shapes, compiled once: for calls and for the audit.

    `jax.jit` would compile once more for a call after `lower(...).compile()`.
    """

    def __init__(
        self,
        run: Any,
        structs: Sequence[list[Any]],
        mesh: Mesh,
        on_host: Sequence[int] = (),
    ) -> None:
        self._run = run
        self._structs = structs
        self._mesh = mesh
        self._on_host = on_host
        self._compiled: jax.stages.Compiled | None = None

    @property
    def is_compiled(self) -> bool:
        """Whether the compiler has run."""
        return self._compiled is not None

    @property
    def compiled(self) -> jax.stages.Compiled:
        """The compiled program, compiled when first asked for."""
        if self._compiled is None:
            self._compiled = self.lower().compile()
        return self._compiled

    def lower(self) -> jax.stages.Lowered:
        """Lowers for the shapes that were given; nothing runs."""
        with tracing_context(self._mesh), collector_paused():
            lowered = self._run.lower(*self._structs)
        if self._on_host:
            rest_on_host(lowered, self._on_host)
        return lowered


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A rewritten step for one structure and shape of arguments.

    Attributes:
      plan: placements of state and batch.
      executable: compiled function of the leaves of each dynamic argument, in a list
        each, which spares JAX from taking trees apart. Returns the step's leaves: in
        its own order if `is_direct`, else new state leaves first.
      is_direct: the step returns its state in an order that donation can use.
      state_args: which dynamic arguments are state.
      state_flat: flat input index of each state leaf.
      other_flat: flat input index of each other leaf.
      in_structs: shape and dtype of each flat input.
      in_treedef: structure of the dynamic arguments.
      arg_treedefs: structure of each of them.
      state_shardings: where each state leaf lies.
      other_shardings: where each other leaf lies.
      keep_state: leaves only the new state in a list of what the program returned.
      out_order: for each output of the step, its index in what the program returns.
      out_treedef: structure of what the step returns.
    """

    plan: Plan
    executable: Executable
    is_direct: bool
    state_args: tuple[int, ...]
    state_flat: tuple[int, ...]
    other_flat: tuple[int, ...]
    in_structs: tuple[jax.ShapeDtypeStruct, ...]
    in_treedef: Any
    arg_treedefs: tuple[Any, ...]
    state_shardings: tuple[NamedSharding, ...]
    other_shardings: tuple[NamedSharding, ...]
    keep_state: Callable[[list[Any]], list[Any]]
    out_order: tuple[int, ...]
    out_treedef: Any

    def call(self, lists: Sequence[list[Any]]) -> list[Any]:
        """Runs on the leaves of each dynamic argument and returns flat results."""
        return self.executable.compiled(*lists)

    def finish(self, outs: list[Any]) -> Any:
        """Puts the results of `call` together as the step function returns them."""
        if not self.is_direct:
            outs = [outs[i] for i in self.out_order]
        return self.out_treedef.unflatten(outs)

    @property
    def state_positions(self) -> tuple[tuple[int, int], ...]:
        """Of each state leaf, its argument and its number in that argument."""
        counts = [treedef.num_leaves for treedef in self.arg_treedefs]
        flat = [(i, k) for i, count in enumerate(counts) for k in range(count)]
        return tuple(flat[i] for i in self.state_flat)

    @property
    def state_structs(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shape and dtype of each state leaf."""
        return tuple(self.in_structs[i] for i in self.state_flat)

    def lower(self) -> jax.stages.Lowered:
        """Lowers for the shapes the program was built for; nothing runs.

        The result takes and returns trees, as the step does; where donation needs
        another order (not `is_direct`), it returns (new state leaves, rest).
        """
        lowered = self.executable.lower()
        out_treedef = self.out_treedef
        if not self.is_direct:
            num_state = len(self.state_flat)
            num_rest = len(self.out_order) - num_state
            out_treedef = jax.tree.structure(([0] * num_state, [0] * num_rest))
        return with_trees(lowered, self.in_treedef, out_treedef)

    @property
    def mesh(self) -> Mesh:
        """The devices, with Auto axes."""
        mesh = self.state_shardings[0].mesh
        assert isinstance(mesh, Mesh)
        return mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Flat positions of a traced call.

    Attributes:
      starts: flat index of the first leaf of each dynamic argument.
      state_flat: flat input index of each state leaf.
      other_flat: flat input index of each other leaf.
      outs: flat output indices, new state leaves first.
    """

    starts: tuple[int, ...]
    state_flat: tuple[int, ...]
    other_flat: tuple[int, ...]
    outs: tuple[int, ...]

    @classmethod
    def of(cls, traced: TracedCall, matched: Matched) -> Layout:
        """Returns the positions of a call whose state was found."""
        counts = [len(jax.tree.leaves(a)) for a in traced.args]
        starts = tuple(sum(counts[:i]) for i in range(len(counts)))
        state = tuple(starts[i] + k for i in matched.args for k in range(counts[i]))
        in_state = set(state)
        new = tuple(
            node.start + k
            for node, i in zip(matched.nodes, matched.args, strict=True)
            for k in range(counts[i])
        )
        replaced = set(new)
        num_outs = len(jax.tree.leaves(traced.out))
        return cls(
            starts=starts,
            state_flat=state,
            other_flat=tuple(i for i in range(sum(counts)) if i not in in_state),
            outs=new + tuple(i for i in range(num_outs) if i not in replaced),
        )


def wrap_program(
    function: StepFunction,
    traced: TracedCall,
    step: TracedStep,
    plan: Plan,
    layout: Layout,
    matched: Matched,
) -> Program:
    """Puts a rewritten step under `jax.jit` with the placements of its plan.

    Args:
      function: the user's step.
      traced: how it was traced.
      step: the rewritten program.
      plan: its plan.
      layout: flat positions.
      matched: its state arguments.

    Returns:
      The program. Nothing is compiled yet.
    """
    evaluate = jaxpr_callable(step.jaxpr)
    structs, in_treedef = jax.tree.flatten(traced.args)
    out_treedef = jax.tree.structure(traced.out)
    num_state = len(layout.state_flat)
    out_order = tuple(sorted(range(len(layout.outs)), key=layout.outs.__getitem__))
    rest = inner(step.jaxpr).outvars[num_state:]
    on_host = [
        flat
        for flat, leaf in zip(layout.state_flat, plan.state, strict=True)
        if leaf.is_on_host
    ]
    is_direct = _keeps_order(layout, num_state, [v.aval.shape for v in rest])

    def train_step(*lists: list[Any]) -> list[Any]:
        inputs = list(itertools.chain.from_iterable(lists))
        for i in on_host:
            # GPUs that are not there know of no host memory and drop it.
            if not is_on_host(jax.typeof(inputs[i])):
                inputs[i] = to_host(inputs[i])
        outs = evaluate(*inputs)
        leaves = [*map(strong, outs[:num_state]), *outs[num_state:]]
        return [leaves[i] for i in out_order] if is_direct else leaves

    train_step.__name__ = function.name
    # One object for each place: a call then compares them by identity.
    shared: dict[NamedSharding, NamedSharding] = {}
    state_places = [sharding_of(leaf, step.mesh) for leaf in plan.state]
    other_places = [NamedSharding(step.mesh, leaf.spec) for leaf in plan.batch]
    state_shardings, other_shardings = (
        tuple(shared.setdefault(place, place) for place in places)
        for places in (state_places, other_places)
    )
    in_shardings: list[Any] = [None] * len(structs)
    for flat, sharding in zip(
        (*layout.state_flat, *layout.other_flat),
        (*state_shardings, *other_shardings),
        strict=True,
    ):
        in_shardings[flat] = sharding
    # A scalar must be readable on every process; larger results may lie as the
    # partitioner left them.
    whole = NamedSharding(step.mesh, PartitionSpec())
    rest_shardings = [None if v.aval.shape else whole for v in rest]
    out_shardings = [*state_shardings, *rest_shardings]
    new_state = slice(num_state)
    if is_direct:
        out_shardings = [out_shardings[i] for i in out_order]
        new_state = layout.outs[:num_state]
    arg_treedefs = tuple(jax.tree.structure(arg) for arg in traced.args)
    run = jax.jit(
        train_step,
        in_shardings=tuple(by_argument(in_shardings, arg_treedefs)),
        out_shardings=out_shardings,
        donate_argnums=matched.args,
        compiler_options=dict(plan.config.compiler_options) or None,
        # So that arguments keep their numbers; see `rest_on_host`.
        keep_unused=bool(on_host),
    )
    return Program(
        plan=plan,
        executable=Executable(
            run, by_argument(structs, arg_treedefs), step.mesh, on_host
        ),
        is_direct=is_direct,
        state_args=matched.args,
        state_flat=layout.state_flat,
        other_flat=layout.other_flat,
        in_structs=tuple(structs),
        in_treedef=in_treedef,
        arg_treedefs=arg_treedefs,
        state_shardings=state_shardings,
        other_shardings=other_shardings,
        keep_state=_keeper(new_state),
        out_order=out_order,
        out_treedef=out_treedef,
    )


def by_argument(leaves: Sequence[Any], treedefs: Sequence[Any]) -> list[list[Any]]:
    """Cuts flat leaves into those of each argument."""
    rest = iter(leaves)
    return [list(itertools.islice(rest, treedef.num_leaves)) for treedef in treedefs]


def _keeps_order(
    layout: Layout, num_state: int, rest_shapes: Sequence[tuple[int, ...]]
) -> bool:
    """Says whether donation may match outputs to inputs in the user's order.

    A donated buffer goes to the first output that fits, so an array returned
    before the state could take the place of a state leaf.
    """
    new, rest = layout.outs[:num_state], layout.outs[num_state:]
    last = max(new, default=-1)
    is_ascending = all(a < b for a, b in itertools.pairwise(new))
    return is_ascending and not any(
        shape and flat < last for flat, shape in zip(rest, rest_shapes, strict=True)
    )


def _keeper(
    positions: Sequence[int] | slice,
) -> Callable[[list[Any]], list[Any]]:
    """Returns a function that drops all leaves but some; a run of them in place."""
    if not isinstance(positions, slice):
        first, last = positions[0], positions[-1]
        if list(positions) != list(range(first, last + 1)):
            return lambda leaves: [leaves[i] for i in positions]
        positions = slice(first, last + 1)
    start, stop = positions.start or 0, positions.stop

    def keep(leaves: list[Any]) -> list[Any]:
        del leaves[stop:]
        if start:
            del leaves[:start]
        return leaves

    return keep
