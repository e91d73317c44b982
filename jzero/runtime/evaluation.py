"""`EvalStep`: a forward-only function on sharded parameters.

Lives here: the evaluation counterpart of a training step; weights are gathered
at use by the same passes. May import: passes, plan, runtime. Read next:
`program.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jzero.compat.jaxpr import jaxpr_callable
from jzero.errors import PlacementError
from jzero.ir.facts import scanned_inputs
from jzero.ir.trace import TracedStep
from jzero.passes.pipeline import run_passes
from jzero.plan.batch import BatchFacts, plan_batch
from jzero.plan.layout import local_bytes
from jzero.plan.leaves import describe_tree
from jzero.plan.plan import LeafPlan, Plan
from jzero.plan.stages import placement_for
from jzero.runtime.calls import Call, StepFunction
from jzero.runtime.match import is_key_or_scalar
from jzero.runtime.mesh import axis_sizes
from jzero.runtime.mutable import Objects
from jzero.runtime.placement import memory_kind, sharding_of, user_spec
from jzero.runtime.settings import Settings
from jzero.runtime.tracing import trace_call


class EvalStep:
    """A function of sharded parameters and a batch; nothing is donated.

    Its first argument (or every nnx object) is the sharded one and must lie on
    the mesh of the training step.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        settings: Settings,
        *,
        batch_argnums: Sequence[int] | None = None,
    ) -> None:
        self._function = StepFunction(fn)
        self._settings = settings
        self._batch_argnums = batch_argnums
        self._runs: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluates the function; see the class.

        Raises:
          BatchError: the batch does not divide by the devices.
          PlacementError: a parameter lies on other devices.
        """
        objects, args, keywords = Objects.split(args, kwargs)
        function = self._function
        if objects is not None:
            function = function.with_function(objects.pure(function.function))
        call = function.split(args, keywords)
        leaves, treedef = jax.tree.flatten(call.values)
        shardings = tuple(
            x.sharding if isinstance(x, jax.Array) and x.committed else None
            for x in leaves
        )
        graphdef = None if objects is None else objects.graphdef
        shapes = tuple(
            (getattr(x, "shape", ()), getattr(x, "dtype", type(x))) for x in leaves
        )
        key = (treedef, call.keys, call.statics, graphdef, shapes, shardings)
        if key not in self._runs:
            state_args = [
                i
                for i, k in enumerate(call.keys)
                if (objects is None and i == 0)
                or (objects is not None and k in objects.keys)
            ]
            self._runs[key] = self._build(function, call, state_args)
        result = self._runs[key](leaves)
        return result[1] if objects is not None else result

    def _build(
        self, function: StepFunction, call: Call, state_args: Sequence[int]
    ) -> Callable[..., Any]:
        settings = self._settings
        mesh = settings.mesh
        traced = trace_call(function, call, mesh)
        counts = [len(jax.tree.leaves(a)) for a in traced.args]
        starts = [sum(counts[:i]) for i in range(len(counts))]
        state = [
            s + k for i in state_args for s in [starts[i]] for k in range(counts[i])
        ]
        other = [i for i in range(sum(counts)) if i not in set(state)]
        leaves = jax.tree.leaves(call.values)
        plan = self._plan(
            call, traced.args, leaves, state_args, scanned_inputs(traced.jaxpr)
        )
        step = TracedStep(
            jaxpr=traced.jaxpr,
            mesh=mesh,
            state_ins=tuple(state),
            state_outs=(-1,) * len(state),
            batch_ins=tuple(other),
        )
        evaluate = jaxpr_callable(run_passes(step, plan).jaxpr)
        treedef = jax.tree.structure(traced.out)
        shardings: list[Any] = [None] * sum(counts)
        for flat, leaf in zip(state, plan.state, strict=True):
            shardings[flat] = sharding_of(leaf, mesh)
        for flat, data in zip(other, plan.batch, strict=True):
            shardings[flat] = NamedSharding(mesh, data.spec)

        def run(flat_leaves: list[Any]) -> Any:
            return treedef.unflatten(evaluate(*flat_leaves))

        run.__name__ = function.name
        return jax.jit(run, in_shardings=(shardings,))

    def _plan(
        self,
        call: Call,
        args: Sequence[Any],
        leaves: Sequence[Any],
        state_args: Sequence[int],
        scanned: Sequence[bool],
    ) -> Plan:
        """Plans from where the arrays lie; nothing is to be placed anew."""
        settings = self._settings
        sizes = axis_sizes(settings.mesh)
        zero_axes = settings.config.axes
        state: list[LeafPlan] = []
        data: list[BatchFacts] = []
        flat = 0
        for i, arg in enumerate(args):
            for facts, struct in zip(
                describe_tree(arg, arg=i, name=call.names[i]),
                jax.tree.leaves(arg),
                strict=True,
            ):
                if i in state_args:
                    spec = self._spec_of(leaves[flat], facts.path)
                    state.append(
                        LeafPlan(
                            path=facts.path,
                            arg=i,
                            role="parameter",
                            owner_path=None,
                            shape=facts.shape,
                            dtype=facts.dtype,
                            spec=spec,
                            base_spec=user_spec(leaves[flat], settings.mesh, zero_axes),
                            memory_kind=memory_kind(leaves[flat]),
                            local_bytes=local_bytes(
                                facts.shape, facts.dtype, spec, dict(sizes)
                            ),
                            global_bytes=facts.size_bytes,
                            reason="as it lies",
                        )
                    )
                else:
                    data.append(
                        BatchFacts(
                            path=facts.path,
                            arg=i,
                            shape=facts.shape,
                            dtype=facts.dtype,
                            scanned=scanned[flat],
                            is_key=is_key_or_scalar(struct) and bool(facts.shape),
                        )
                    )
                flat += 1
        return Plan(
            stage=settings.stage,
            placement=placement_for(
                settings.stage, replicate_params=settings.config.replicate_params
            ),
            axis_sizes=sizes,
            zero_axes=zero_axes,
            batch_axes=settings.config.batch_axes,
            config=settings.config,
            state=tuple(state),
            batch=plan_batch(
                data,
                axis_sizes=dict(sizes),
                batch_axes=settings.config.batch_axes,
                batch_args=self._batch_args(call),
            ),
        )

    def _batch_args(self, call: Call) -> tuple[int, ...] | None:
        if self._batch_argnums is None:
            return None
        return tuple(call.keys.index(n) for n in self._batch_argnums if n in call.keys)

    def _spec_of(self, leaf: Any, path: str) -> PartitionSpec:
        mesh = self._settings.mesh
        if not isinstance(leaf, jax.Array) or not leaf.committed:
            return PartitionSpec()
        sharding = leaf.sharding
        if isinstance(sharding, NamedSharding) and dict(sharding.mesh.shape) == dict(
            mesh.shape
        ):
            return sharding.spec
        if len(sharding.device_set) == 1 and mesh.size > 1:
            raise PlacementError(
                f"{path} lies on one device of {mesh.size}: {sharding}.\n"
                "Remedy: place it with `step.shard(state)`."
            )
        return PartitionSpec()
