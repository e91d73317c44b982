"""A traced training step: the value that passes take and return.

Lives here: `TracedStep`, and how the marks of its inputs follow from a plan.
May import: compat, plan, ir. Read next: `jzero/passes/pipeline.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from jax.sharding import Mesh, PartitionSpec

from jzero.compat.jaxpr import AnyJaxpr, inner
from jzero.ir.marks import Mark
from jzero.ir.specs import Dims, Entry, is_sharded, to_dims
from jzero.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A step function as a closed jaxpr over flat arguments.

    Attributes:
      jaxpr: the program; outputs are the state leaves first, in the order of
        the inputs they replace, then everything else the step returns.
      mesh: the devices, with Auto axes.
      state_ins: flat input index of each leaf of `plan.state`.
      state_outs: flat output index of the new value of each state leaf, or -1
        for a leaf that the step does not return.
      batch_ins: flat input index of each leaf of `plan.batch`.
    """

    jaxpr: AnyJaxpr
    mesh: Mesh
    state_ins: tuple[int, ...]
    state_outs: tuple[int, ...]
    batch_ins: tuple[int, ...]

    def with_jaxpr(self, jaxpr: AnyJaxpr) -> TracedStep:
        """Returns the same step with a rewritten program."""
        return replace(self, jaxpr=jaxpr)


Pass = Callable[[TracedStep, Plan], TracedStep]


def input_marks(
    step: TracedStep, plan: Plan, *, has_whole: bool = False
) -> tuple[Mark | None, ...]:
    """Returns a mark for every input that is a sharded state leaf.

    Args:
      step: the traced step.
      plan: placements of its state leaves, in the order of `step.state_ins`.
      has_whole: mark parameters and optimizer state that stay whole too, with
        equal `dims` and `base`.

    Returns:
      One mark or None per flat input.
    """
    marks: list[Mark | None] = [None] * len(inner(step.jaxpr).invars)
    for leaf, (flat, placed) in enumerate(zip(step.state_ins, plan.state, strict=True)):
        dims = to_dims(placed.spec, len(placed.shape))
        base = to_dims(placed.base_spec, len(placed.shape))
        if dims != base or (has_whole and placed.shape and placed.role != "other"):
            is_once = plan.placement.gather == "once"
            marks[flat] = Mark(dims=dims, base=base, leaf=leaf, is_once=is_once)
    return tuple(marks)


def output_dims(step: TracedStep, plan: Plan) -> tuple[Dims | None, ...]:
    """Returns, per flat output, how its shard must lie, or None.

    Only state leaves that the plan shards are asked for; what else the step
    returns may lie as it likes.
    """
    dims: list[Dims | None] = [None] * len(inner(step.jaxpr).outvars)
    for flat, placed in zip(step.state_outs, plan.state, strict=True):
        wanted = to_dims(placed.spec, len(placed.shape))
        base = to_dims(placed.base_spec, len(placed.shape))
        if flat >= 0 and is_sharded(wanted) and wanted != base:
            dims[flat] = wanted
    return tuple(dims)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSplit:
    """How the batch dim is split.

    Attributes:
      entry: the mesh axes, as an entry of a partition spec.
      num_parts: product of their sizes.
    """

    entry: Entry
    num_parts: int

    def dims(self, shape: tuple[int, ...], dim: int) -> Dims | None:
        """Dims of a value split along `dim` and otherwise left to the compiler.

        None if the size does not divide.
        """
        if dim >= len(shape) or not shape[dim] or shape[dim] % self.num_parts:
            return None
        free = PartitionSpec.UNCONSTRAINED
        return tuple(self.entry if i == dim else free for i in range(len(shape)))


def batch_split(plan: Plan) -> BatchSplit:
    """Returns how a plan splits the batch."""
    axes = plan.batch_axes
    num_parts = 1
    for name, size in plan.axis_sizes:
        num_parts *= size if name in axes else 1
    return BatchSplit(
        entry=axes[0] if len(axes) == 1 else tuple(axes), num_parts=num_parts
    )


def input_batch_dims(step: TracedStep, plan: Plan) -> list[int | None]:
    """Returns, per flat input, the dim that the plan splits over the batch axes."""
    dims: list[int | None] = [None] * len(inner(step.jaxpr).invars)
    for flat, leaf in zip(step.batch_ins, plan.batch, strict=True):
        for i, entry in enumerate(to_dims(leaf.spec, len(leaf.shape))):
            if entry is not None:
                dims[flat] = i
                break
    return dims
