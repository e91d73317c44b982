"""Findings among the collectives of a compiled program.

Lives here: `find_moved`, for whole gradients that are all-reduced, gathers in 32 bits
of what is used in 16, activations that move, and arrays gathered only to be cut up
again. May import: `finding`, `dataflow`, the audit's facts, plan. Read next:
`alive.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from jzero.audit.aliases import read_position
from jzero.audit.facts import CollectiveFacts
from jzero.audit.findings.dataflow import SAME_OR_CAST, Flow
from jzero.audit.findings.finding import Finding
from jzero.audit.findings.origin import Origins
from jzero.audit.findings.updated import find_updated_leaf
from jzero.audit.formula import plan_traffic
from jzero.audit.hlo import Computation, Module
from jzero.audit.names import GATHER_SCOPE, has_elems, name_leaves
from jzero.audit.shapes import ArrayShape
from jzero.plan.plan import LeafPlan, Plan

__all__ = ["find_moved"]

_WIDE = ("f32", "f64")
_NARROW = ("bf16", "f16")
_EXCHANGES = ("all-gather", "all-to-all", "ragged-all-to-all", "collective-permute")
_OURS = "jzero."
# The gradient of a look-up, such as that of an embedding.
_SCATTER = "scatter-add"
_REMEDY_CUT = (
    "keep the dim that two shardings fight over in one sharding, with "
    "jax.lax.with_sharding_constraint"
)
_REMEDY_MOVED = (
    "constrain the value to the batch axes, with jax.lax.with_sharding_constraint, "
    "where the line produces it"
)
# Less than this, in one collective, is not worth a person's time.
_MIN_BYTES = 2**16
# What the user wrote to move, in regions where jzero changes nothing.
_BY_HAND = ("shard_map", "shmap")


def find_moved(
    module: Module,
    facts: Sequence[CollectiveFacts],
    plan: Plan,
    leaves: Mapping[tuple[int, int], LeafPlan],
    platform: str,
) -> Iterator[Finding]:
    """Yields the findings of every collective, in program order.

    Args:
        module: The compiled program.
        facts: Its collectives.
        plan: Its plan. Nothing is asked of stage 0 but that activations stay.
        leaves: State leaves by (argument, leaf of that argument).
        platform: Of the devices, as backends differ in what they can.
    """
    finder = _Finder(module, plan, leaves, platform)
    finder.spare_bytes = finder.count_spare(facts)
    finder.scatter_sources = {
        fact.source for fact in facts if fact.op_name.endswith(_SCATTER)
    }
    for fact in facts:
        if any(word in fact.op_name for word in _BY_HAND):
            continue
        yield from finder.find(fact)


class _Finder:
    def __init__(
        self,
        module: Module,
        plan: Plan,
        leaves: Mapping[tuple[int, int], LeafPlan],
        platform: str,
    ) -> None:
        self.platform = platform
        self.module = module
        self.leaves = leaves
        self.plan = plan
        self.flow = Flow(module)
        self.origins = Origins(module)
        self.homes: dict[str, Computation] = {
            name: computation
            for computation in module.computations.values()
            for name in computation.instructions
        }
        sizes = dict(plan.axis_sizes)
        self.min_elems = plan.config.persistence_threshold
        self.num_shards = prod(sizes[axis] for axis in plan.zero_axes)
        self.spare_bytes = 0
        self.scatter_sources: set[str | None] = set()
        split = {*plan.zero_axes, *plan.batch_axes}
        self.other_sizes = {
            size for axis, size in sizes.items() if axis not in split and size > 1
        }

    def count_spare(self, facts: Sequence[CollectiveFacts]) -> int:
        """Bytes, in 16 bits, that reductions of gradients save against the formula.

        A compiler may add up a gradient where its shard is, out of gathered
        activations, when that moves less than the reduce-scatter in whose place it is.
        So it does with an embedding that is split along its width: it exchanges what
        the tokens give for their rows, and gathers the tokens.
        """
        allowed = plan_traffic(self.plan, elem_bytes=2).reduce_scatter_bytes
        for fact in facts:
            home = self.homes[fact.name]
            if fact.kind == "reduce-scatter":
                allowed -= _narrowed(fact, fact.step_moved_bytes)
            elif fact.kind == "all-reduce" and self._is_sliced(home, fact):
                allowed -= _narrowed(fact, fact.step_moved_bytes // 2)
        return max(0, allowed)

    def _is_sliced(self, home: Computation, fact: CollectiveFacts) -> bool:
        is_one = len(home.instructions[fact.name].operands) == 1
        indices = (None,) if is_one else fact.indices
        return any(self.flow.is_only_sliced(home, fact.name, i) for i in indices)

    def find(self, fact: CollectiveFacts) -> Iterator[Finding]:
        scale = fact.group_size if fact.kind == "all-gather" else 1
        if fact.operand_bytes * scale < _MIN_BYTES:
            return
        # An exchange may come as one operand for each device.
        num_elems = scale * sum(operand.num_elems for operand in fact.operands)
        if num_elems < self.min_elems or fact.group_size == 1:
            return
        if fact.kind == "all-reduce":
            yield from self._whole_gradient(fact)
        elif fact.kind in _EXCHANGES:
            leaves, strangers = self._tell_apart(fact)
            yield from self._wide(fact, leaves)
            if strangers and fact.group_size not in self.other_sizes:
                yield from self._strangers(fact, strangers)

    def _tell_apart(
        self, fact: CollectiveFacts
    ) -> tuple[list[tuple[int, LeafPlan]], list[tuple[int, ArrayShape]]]:
        """Tells leaves that a collective gathers, by operand, from other arrays."""
        operands = list(zip(fact.indices, fact.operands, strict=True))
        if fact.kind != "all-gather":
            return [], operands
        home = self.homes[fact.name]
        names = home.instructions[fact.name].operands
        joined = list(name_leaves(fact, self.plan)) if _is_gather(fact) else []
        found: list[tuple[int, LeafPlan]] = []
        rest: list[tuple[int, ArrayShape]] = []
        for index, operand in operands:
            leaf = self._read_leaf(home, names[index])
            named = joined if GATHER_SCOPE in self._origin(fact, index)[0] else []
            if leaf is None and named:
                whole_elems = operand.num_elems * fact.group_size
                leaf = _same_elems(whole_elems, fact.runs, named)
                if leaf is None and len(fact.operands) == 1:
                    leaf = named[0]
            if leaf is not None:
                found.append((index, leaf))
            elif operand.num_elems * fact.group_size >= self.min_elems:
                rest.append((index, operand))
        return found, rest

    def _origin(self, fact: CollectiveFacts, index: int) -> tuple[str, str | None]:
        """(JAX operation, source line) of one operand.

        A collective that joins several has the names of all of them, and the line of
        one; what takes its result apart still has its own.
        """
        home = self.homes[fact.name]
        if len(home.instructions[fact.name].operands) > 1:
            for part in self.flow.parts(home, fact.name, index):
                if part.op_name:
                    return part.op_name, self.module.sources.source(part.metadata)
        return fact.op_name, fact.source

    def _read_leaf(self, home: Computation, name: str) -> LeafPlan | None:
        """The state leaf that a value is read from, if it is only moved and cast."""
        argument = self.origins.argument(home, name)
        position = read_position(argument.op_name) if argument is not None else None
        return self.leaves.get(position) if position else None

    def _whole_gradient(self, fact: CollectiveFacts) -> Iterator[Finding]:
        if self.plan.placement.reduce != "at_birth":
            return
        home = self.homes[fact.name]
        named = name_leaves(fact, self.plan)
        params = [leaf for leaf in self.plan.state if leaf.role == "parameter"]
        # A leaf that is whole at rest may have the size of one that is not.
        params.sort(key=lambda leaf: leaf.is_sharded)
        is_joined = len(fact.parts) != len(fact.operands)
        num_operands = len(home.instructions[fact.name].operands)
        found: dict[str, tuple[int, ArrayShape]] = {}
        for number, part in enumerate(fact.parts):
            if part.num_elems < self.min_elems:
                continue
            index = None if is_joined or num_operands == 1 else fact.indices[number]
            leaf = _same_elems(part.num_elems, fact.runs, named, params)
            if leaf is None or not leaf.is_sharded:
                continue
            leaf = self._updated(home, fact, index) or leaf
            # XLA for CPUs has no reduce-scatter: it sums the whole and keeps a slice.
            # So does XLA for TPUs where it thinks that this is faster.
            is_split = self.platform in ("cpu", "tpu")
            if is_split and self.flow.is_only_sliced(home, fact.name, index):
                continue
            before, _ = found.get(leaf.path, (0, part))
            ring_bytes = 2 * part.num_bytes * (fact.group_size - 1) // fact.group_size
            found[leaf.path] = before + ring_bytes * fact.runs, part
        for path, (num_bytes, part) in found.items():
            yield Finding(
                kind="large-all-reduce",
                where=path,
                num_bytes=num_bytes,
                detail=f"{part} is summed whole on every device, "
                f"{_times(fact.runs)} a step ({fact.source or 'source unknown'})",
                remedy="the gradient must reach its update through element-wise "
                "operations; look for a whole read of it, such as a print or a "
                "sharding constraint",
            )

    def _updated(
        self, home: Computation, fact: CollectiveFacts, index: int | None
    ) -> LeafPlan | None:
        """The parameter whose update takes a sum in, where that can be followed."""
        leaf = find_updated_leaf(
            self.module, self.flow, home, fact.name, index, self.leaves
        )
        if leaf is None or leaf.owner_path is None:
            return leaf
        owners = (x for x in self.plan.state if x.path == leaf.owner_path)
        return next(owners, leaf)

    def _wide(
        self, fact: CollectiveFacts, leaves: Sequence[tuple[int, LeafPlan]]
    ) -> Iterator[Finding]:
        # XLA for CPUs moves all 16-bit values in 32 bits.
        if fact.dtype not in _WIDE or self.platform == "cpu":
            return
        if self.plan.config.gather_dtype == "param":
            return
        home = self.homes[fact.name]
        is_one = len(home.instructions[fact.name].operands) == 1
        shapes = dict(zip(fact.indices, fact.operands, strict=True))
        for index, leaf in leaves:
            part = None if is_one else index
            num_elems = shapes[index].num_elems * fact.group_size
            if num_elems < self.min_elems or not self.flow.is_only_cast(
                home, fact.name, _NARROW, part
            ):
                continue
            moved_bytes = shapes[index].num_bytes * (fact.group_size - 1) * fact.runs
            yield Finding(
                kind="wide-gather",
                where=leaf.path,
                num_bytes=moved_bytes // 2,
                detail=f"{fact.dtype} is gathered {_times(fact.runs)} a step and then "
                "cast to 16 bits; half of the bytes are for nothing",
                remedy="cast the leaf before anything else reads it",
            )

    def _strangers(
        self, fact: CollectiveFacts, strangers: Sequence[tuple[int, ArrayShape]]
    ) -> Iterator[Finding]:
        """Findings of what is no leaf, arrays of one line together."""
        is_gather = fact.kind == "all-gather"
        groups: dict[tuple[str, str | None, bool], list[ArrayShape]] = {}
        for index, shape in strangers:
            is_cut = is_gather and self._is_cut_again(
                self.homes[fact.name], fact, index
            )
            groups.setdefault((*self._origin(fact, index), is_cut), []).append(shape)
        for (op_name, source, is_cut), shapes in groups.items():
            share = sum(x.num_bytes for x in shapes) / max(1, fact.operand_bytes)
            num_bytes = round(fact.step_moved_bytes * share)
            is_instead = is_gather and _OURS in op_name
            if (is_instead or source in self.scatter_sources) and (
                _narrowed(fact, num_bytes) <= self.spare_bytes
            ):
                self.spare_bytes -= _narrowed(fact, num_bytes)
                continue
            yield Finding(
                kind="full-rematerialization" if is_cut else "activation-moved",
                where=source or op_name or fact.name,
                num_bytes=num_bytes,
                detail=f"{fact.kind} of {', '.join(map(str, shapes[:3]))}, "
                f"{_times(fact.runs)} a step, from {op_name or 'an unnamed operation'}",
                remedy=_REMEDY_CUT if is_cut else _REMEDY_MOVED,
            )

    def _is_cut_again(
        self, home: Computation, fact: CollectiveFacts, index: int
    ) -> bool:
        """Says whether every reader takes this device's own part of the whole."""
        is_one = len(home.instructions[fact.name].operands) == 1
        part = None if is_one else index
        # XLA for CPUs casts what it moved in 32 bits.
        readers = list(self.flow.readers(home, fact.name, part, SAME_OR_CAST))
        return bool(readers) and all(
            reader.opcode == "dynamic-slice"
            and any(
                self.flow.comes_from(where, name, source)
                for name in reader.operands[1:]
                for source in ("partition-id", "parameter")
            )
            for where, reader, _ in readers
        )


def _times(runs: int) -> str:
    return "once" if runs == 1 else f"{runs} times"


def _narrowed(fact: CollectiveFacts, num_bytes: int) -> int:
    """The bytes in 16 bits: gradients of a float32 model have 32, as all on CPUs."""
    return num_bytes * 16 // fact.operands[0].elem_bits


def _is_gather(fact: CollectiveFacts) -> bool:
    return GATHER_SCOPE in fact.op_name


def _same_elems(
    num_elems: int, runs: int, *choices: Sequence[LeafPlan]
) -> LeafPlan | None:
    """The first leaf of these elements, or with layers of these elements."""
    for leaf in (leaf for leaves in choices for leaf in leaves):
        if has_elems(leaf, num_elems, runs):
            return leaf
    return None
