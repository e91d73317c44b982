"""`TrainStep`: the object that users hold and call.

Lives here: keeping one program per structure and shape of arguments, the quick
path of a call, and turning failures of a call into errors that name leaves. May
import: runtime and below. Read next: `jzero/runtime/program.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import NamedSharding

from jzero.audit.compiled_step import CompiledStep
from jzero.config import ZeroConfig
from jzero.errors import format_problem
from jzero.plan.host import HOST
from jzero.plan.plan import Plan
from jzero.runtime.batches import place_batch, place_data, shape_of
from jzero.runtime.birth import Birth, plan_birth
from jzero.runtime.build import build_program
from jzero.runtime.calls import Call, StepFunction
from jzero.runtime.evaluation import EvalStep
from jzero.runtime.host_memory import available_bytes, check_host_memory
from jzero.runtime.mutable import Objects
from jzero.runtime.placement import (
    check_alive,
    check_devices,
    check_unshared,
    gather_leaf,
    is_placed,
    place_leaf,
    user_spec,
)
from jzero.runtime.program import Program, by_argument
from jzero.runtime.quick import Quick
from jzero.runtime.settings import Known, Settings
from jzero.runtime.states import StateView, view_state
from jzero.runtime.tracing import abstract

# What a program raises before it runs, when arguments do not fit it.
_REFUSED = (ValueError, TypeError, RuntimeError)


def _rows(tree: Any) -> list[tuple[str, Any]]:
    rows = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [("state" + jax.tree_util.keystr(path), leaf) for path, leaf in rows]


def _lies_elsewhere(leaf: Any, target: NamedSharding) -> bool:
    """Says whether a leaf was sharded already, but not as planned."""
    is_spread = isinstance(leaf, jax.Array) and (
        not leaf.is_fully_replicated or leaf.sharding.memory_kind == HOST
    )
    return is_spread and not leaf.sharding.is_equivalent_to(target, leaf.ndim)


def _has_run(error: Exception) -> bool:
    """Says whether an error came from running, so that trying again is no use."""
    is_runtime = isinstance(error, jax.errors.JaxRuntimeError)
    return is_runtime and "donated" not in str(error)


class TrainStep:
    """A training step under ZeRO; made by `jzero.shard_train_step`.

    Call it exactly as the step function it was made of.
    """

    def __init__(self, function: StepFunction, settings: Settings) -> None:
        self._function = function
        self._settings = settings
        self._programs: dict[Any, Program] = {}
        self._known: Sequence[Known] | None = None
        self._quick: Quick | None = None

    @property
    def config(self) -> ZeroConfig:
        """The settings."""
        return self._settings.config

    def with_config(self, config: ZeroConfig) -> TrainStep:
        """Returns the same step under other settings, nothing compiled yet."""
        return TrainStep(self._function, replace(self._settings, config=config))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one step; takes and returns what the step function does.

        The state's buffers are donated: go on with the returned state.

        Raises:
          StateError: the state cannot be found, or changes in the step.
          BatchError: the batch does not divide by the devices.
          DonationError: the state was used before.
          AliasError: two paths of the state hold one buffer.
          PlacementError: the state lives on other devices.
        """
        quick = self._quick
        if quick is not None:
            try:
                result = quick(args, kwargs)
                if result is not NotImplemented:
                    return result
            except (*_REFUSED, IndexError) as error:
                if _has_run(error):
                    self._quick = None
                    raise
                # Take the long way: it accepts what can be accepted, and says
                # what is wrong with the rest.
        return self._call_any(args, kwargs)

    def init(self, create_fn: Callable[..., Any], *args: Any) -> Any:
        """Creates a state whose leaves are born in their final places.

        Args:
          create_fn: returns one state, the tuple of the step's state arguments,
            or nnx objects.
          *args: its arguments (random keys, a sample batch).

        Returns:
          What `create_fn` returns.

        Example:
          >>> import jax, jax.numpy as jnp, jzero
          >>> step = jzero.shard_train_step(lambda w, x: (w - x.mean(), x.sum()))
          >>> step.init(lambda: jnp.zeros((4,))).shape
          (4,)
        """
        return self.birth(create_fn, *args).make()

    def birth(self, create_fn: Callable[..., Any], *args: Any) -> Birth:
        """Plans what `init` would create, and where, without creating it."""
        birth = plan_birth(
            create_fn, args, step_function=self._function, settings=self._settings
        )
        self._known = birth.view.known
        return birth

    def view(self, state: Any) -> StateView:
        """Takes a state apart into leaves, with their paths and the plan of each."""
        return view_state(
            state,
            step_function=self._function,
            settings=self._settings,
            before=self._known,
        )

    def shard(self, state: Any) -> Any:
        """Copies an existing state to where the plan wants it.

        Args:
          state: one state, the tuple of the step's state arguments, or nnx
            objects (which are changed in place). Shardings that it already has
            on further mesh axes are kept.

        Returns:
          The placed state; the given arrays stay usable.
        """
        view = self.view(state)
        mesh = self._settings.mesh
        check_host_memory(view.plan, mesh, free_bytes=available_bytes())
        self._known = view.known
        placed = [
            place_leaf(x, sharding)
            for x, sharding in zip(view.leaves, view.shardings, strict=True)
        ]
        return view.assemble(placed)

    def shard_batch(self, batch: Any) -> Any:
        """Makes global arrays of this process's part of a batch.

        Args:
          batch: a pytree of host or device arrays; in several processes each
            passes its own rows, in one process the whole batch.

        Returns:
          The same tree of arrays split over the batch axes.

        Raises:
          BatchError: the batch does not divide by the devices.
        """
        plans = [p.plan for p in self._programs.values()]
        return place_batch(batch, self._settings, plans)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lowers the step for the given arguments; nothing runs.

        Args:
          *args: as for a call; `jax.ShapeDtypeStruct`s will do, and the mesh may
            be of devices that are not there.
          **kwargs: likewise.
        """
        return self._program_for(args, kwargs)[0].lower()

    def compile(self, *args: Any, **kwargs: Any) -> CompiledStep:
        """Compiles the step for the given arguments, if no call has; nothing runs.

        Args:
          *args: as for a call; `jax.ShapeDtypeStruct`s will do.
          **kwargs: likewise.

        Returns:
          The compiled step: `.report()` says what the compiler really built. Calls
          with arguments of these shapes use it and compile nothing more.

        Raises:
          FindingError: the program does what the plan did not ask for, and
            `ZeroConfig(on_finding="raise")` is set.
        """
        return self._compiled(self._program_for(args, kwargs)[0])

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Returns the plan for a call with these arguments: frozen and printable."""
        return self._program_for(args, kwargs)[0].plan

    def gather(self, tree: Any) -> Any:
        """Returns whole arrays on the host of every process.

        Every process must call it. Random keys come back as replicated arrays.
        """
        check_alive(_rows(tree))
        return jax.tree.map(lambda x: gather_leaf(x, self._settings.mesh), tree)

    def eval_step(
        self,
        fn: Callable[..., Any],
        *,
        batch_argnums: Sequence[int] | None = None,
    ) -> EvalStep:
        """Wraps a forward-only function of sharded parameters.

        Args:
          fn: `fn(params_or_state, batch, ...)`; its first argument (or its nnx
            objects) is the sharded one.
          batch_argnums: arguments that are split over the batch axes; None finds
            them by their common size, `()` replicates all.

        Returns:
          A callable with the signature of `fn`; weights are gathered at use as in
          the training step, and nothing is donated.
        """
        return EvalStep(fn, self._settings, batch_argnums=batch_argnums)

    def _program_for(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Program, Objects | None, list[Any], Call]:
        """Finds or builds the program of a call.

        Returns:
          (program, nnx objects or None, flat leaves, the call taken apart).
        """
        objects, args, keywords = Objects.split(args, kwargs)
        function = self._function
        if objects is not None:
            function = function.with_function(objects.pure(function.function))
        call = function.split(args, keywords)
        leaves, treedef = jax.tree.flatten(call.values)
        graphdef = None if objects is None else objects.graphdef
        key = (treedef, call.keys, call.statics, graphdef)
        key = (*key, tuple(map(shape_of, leaves)))
        program = self._programs.get(key) or self._takes_numbers(key, leaves)
        if program is None:
            mesh, axes = self._settings.mesh, self._settings.config.axes
            given = [user_spec(leaf, mesh, axes) for leaf in leaves]
            program = build_program(
                function, call, self._settings, known=self._known, given=given
            )
        self._programs[key] = program
        return program, objects, leaves, call

    def _compiled(self, program: Program) -> CompiledStep:
        """Compiles a program and looks at what came out, once."""
        is_new = not program.executable.is_compiled
        compiled = CompiledStep(program)
        if is_new:
            compiled.announce_findings()
        return compiled

    def _takes_numbers(self, key: Any, leaves: Sequence[Any]) -> Program | None:
        """Finds a program for a state in which a scalar was set to a Python number.

        It need not be compiled again: state is placed with its own dtype.
        """
        numbers = {i for i, x in enumerate(leaves) if isinstance(x, bool | int | float)}
        for (*other, shapes), program in self._programs.items():
            if not numbers or tuple(other) != key[:-1]:
                continue
            differ = [i for i, s in enumerate(key[-1]) if s != shapes[i]]
            structs = program.in_structs
            if all(
                i in numbers
                and i in program.state_flat
                and abstract(leaves[i]).dtype == structs[i].dtype
                and not structs[i].shape
                for i in differ
            ):
                return program
        return None

    def _call_any(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._quick = None
        program, objects, leaves, call = self._program_for(args, kwargs)
        leaves = list(leaves)
        state = self._vet(program, [leaves[i] for i in program.state_flat])
        given = [leaves[i] for i in program.other_flat]
        data = place_data(given, program)
        for flat, leaf in zip(program.state_flat, state, strict=True):
            leaves[flat] = leaf
        for flat, leaf in zip(program.other_flat, data, strict=True):
            leaves[flat] = leaf
        self._compiled(program)
        outs = program.call(by_argument(leaves, program.arg_treedefs))
        result = program.finish(outs)
        if objects is not None:
            states, value = result
            objects.update(states)
            return value
        is_moved = data is not given
        self._quick = Quick(program, call, outs, data=given, is_moved=is_moved)
        return result

    def _vet(self, program: Program, state: Sequence[Any]) -> list[Any]:
        """Checks a state that did not come from this step, and places it."""
        rows = [(p.path, x) for p, x in zip(program.plan.state, state, strict=True)]
        check_alive(rows)
        check_devices(rows, self._settings.mesh)
        placed, moved = [], []
        shardings = program.state_shardings
        for (path, leaf), target, struct in zip(
            rows, shardings, program.state_structs, strict=True
        ):
            if is_placed(leaf, target):
                placed.append(leaf)
                continue
            if _lies_elsewhere(leaf, target):
                moved.append((path, f"{leaf.sharding} -> {target.spec}"))
            placed.append(place_leaf(leaf, target, dtype=struct.dtype))
        check_unshared([(path, x) for (path, _), x in zip(rows, placed, strict=True)])
        if moved:
            warnings.warn(
                format_problem(
                    "the state did not lie where the plan wants it and was moved",
                    moved,
                    "create it with `step.init` or place it once with `step.shard`",
                ),
                stacklevel=4,
            )
        return placed
