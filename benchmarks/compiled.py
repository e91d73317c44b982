"""One case of the figures table, compiled: its figures, and what they miss.

Lives here: `compile_case`, the formula of resident bytes, and the checks. Nothing
runs: memory and collectives are the compiler's. Read next: `figures.py`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax

import jzero
from benchmarks.annotations.arguments import lower_annotated
from benchmarks.annotations.careful import lower_careful
from benchmarks.cases import CASES, Case, Limits
from jzero.audit.collectives import read_collectives
from jzero.audit.facts import CollectiveFacts, find_collectives
from jzero.audit.hlo import parse_module
from jzero.audit.memory import MemoryFacts, read_memory
from jzero.audit.pods import COMPILER_OPTIONS, pod_mesh
from tests.gpt_model import batch_shapes, build_gpt, count_params

__all__ = [
    "Figures",
    "Way",
    "carried_leaves",
    "compile_case",
    "divides",
    "layer_growth_mb",
    "misses",
    "resident_bytes",
]

Way = Literal["jzero", "arguments", "careful"]
"""Who makes the program: jzero; `jax.jit` with shardings on its arguments alone; or
the model edited with constraints on every activation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one compiled step came to.

    Attributes:
        num_devices: Devices it runs on.
        memory: Bytes it holds on one device.
        collectives: What it sends, in program order.
        num_params: Elements of all parameters.
        formula_bytes: Resident bytes that the stage promises.
        norm_elems: Elements of a norm's scale, the one weight used in float32.
        whole_elems: Sizes of leaves, or of one layer of them, that no device count
            divides, and whose gradients are all-reduced for that.
        carried: Whole leaves in float32 that a loop hands on from one iteration to the
            next: accumulators that are not sharded.
        lower_seconds: Tracing, planning, rewriting and lowering.
        compile_seconds: XLA's time.
        compiled: The program.
    """

    num_devices: int
    memory: MemoryFacts
    collectives: tuple[CollectiveFacts, ...]
    num_params: int
    formula_bytes: int
    norm_elems: int
    whole_elems: frozenset[int]
    carried: tuple[str, ...]
    lower_seconds: float
    compile_seconds: float
    compiled: Any

    @property
    def moved_bytes(self) -> int:
        """Bytes that one device sends per step, loops times their trip counts."""
        return sum(fact.step_moved_bytes for fact in self.collectives)

    @property
    def units(self) -> float:
        """Bytes moved, in bf16 all-reduces of all gradients.

        Source:
            ZeRO, arXiv 1910.02054, section 7: 2 Psi for data parallelism.
        """
        n = self.num_devices
        return self.moved_bytes / (2 * 2 * self.num_params * (n - 1) / n)


def compile_case(
    case: Case,
    stage: int,
    *,
    config: jzero.ZeroConfig | None = None,
    way: Way = "jzero",
    vocab: int = 32_000,
) -> Figures:
    """Compiles one case at one stage.

    Args:
        case: Model, pod and batch.
        stage: The ZeRO stage.
        config: Settings of jzero; None for the defaults.
        way: Who makes the program.
        vocab: Tokens of the model.

    Returns:
        The figures.
    """
    config = config or jzero.ZeroConfig()
    mesh = pod_mesh(case.pod)
    gpt = build_gpt(
        vocab=vocab,
        width=case.width,
        num_layers=case.num_layers,
        is_scanned=case.is_scanned,
        num_micro_batches=case.num_micro_batches,
    )
    state = gpt.state_shapes()
    batch = batch_shapes(case.sequences_per_device * mesh.size, case.num_tokens)
    start = time.perf_counter()
    if way == "careful":
        lowered = lower_careful(case, state, batch, stage=stage, mesh=mesh, vocab=vocab)
    elif way == "arguments":
        lowered = lower_annotated(gpt.step, state, batch, stage=stage, mesh=mesh)
    else:
        sharded = jzero.shard_train_step(
            gpt.step, stage=stage, mesh=mesh, config=config
        )
        lowered = sharded.lower(state, batch)
    middle = time.perf_counter()
    compiled = lowered.compile(compiler_options=dict(COMPILER_OPTIONS))
    end = time.perf_counter()
    module = parse_module(compiled.as_text() or "")
    return Figures(
        num_devices=module.num_devices,
        memory=read_memory(compiled),
        collectives=read_collectives(module),
        num_params=count_params(state),
        formula_bytes=resident_bytes(
            state, batch, stage, mesh.size, config.persistence_threshold
        ),
        norm_elems=case.width,
        whole_elems=frozenset(
            size
            for leaf in jax.tree.leaves(state)
            if not divides(leaf.shape, mesh.size)
            for size in (leaf.size, leaf.size // case.num_layers)
        ),
        carried=carried_leaves(
            compiled.as_text() or "",
            [
                leaf.shape
                for leaf in jax.tree.leaves(state.params)
                if leaf.size >= config.persistence_threshold
                and divides(leaf.shape, mesh.size)
            ],
        ),
        lower_seconds=middle - start,
        compile_seconds=end - middle,
        compiled=compiled,
    )


def carried_leaves(text: str, shapes: Sequence[tuple[int, ...]]) -> tuple[str, ...]:
    """Lists float32 arrays of these shapes that loops of a program carry.

    Args:
        text: The compiled program.
        shapes: Shapes of whole leaves. Transposed ones count too.

    Returns:
        The arrays, as HLO spells them.
    """
    wanted = {tuple(sorted(shape)) for shape in shapes}
    return tuple(
        str(shape)
        for computation in parse_module(text).computations.values()
        for instruction in computation.instructions.values()
        if instruction.opcode == "while"
        for shape in instruction.shapes
        if shape.dtype == "f32" and tuple(sorted(shape.dims)) in wanted
    )


def divides(shape: Sequence[int], num_devices: int) -> bool:
    """Says whether some dim of a leaf can be split over the devices."""
    return any(length % num_devices == 0 for length in shape)


def resident_bytes(
    state: Any, batch: Any, stage: int, num_devices: int, threshold: int
) -> int:
    """Returns bytes per device at rest, by the stage's formula.

    Stages 1 to 3 hold 1/N of each leaf that has at least `threshold` elements and a
    dim that N divides, the others whole, and 1/N of the batch.
    """
    total = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(batch))
    total //= num_devices
    for leaf in jax.tree.leaves(state):
        is_sharded = (
            stage > 0 and leaf.size >= threshold and divides(leaf.shape, num_devices)
        )
        num_bytes = leaf.size * leaf.dtype.itemsize
        total += num_bytes // num_devices if is_sharded else num_bytes
    return total


def misses(figures: Figures, stage: int, limits: Limits, threshold: int) -> list[str]:
    """Lists what the figures miss of what they must reach."""
    peak_mb = figures.memory.device_peak_bytes / 1e6
    seconds = figures.lower_seconds + figures.compile_seconds
    resident = figures.memory.argument_bytes
    found: list[str] = []
    if abs(resident / figures.formula_bytes - 1) > 0.01:
        found.append("resident")
    if limits.peak_mb is not None and peak_mb > limits.peak_mb:
        found.append(f"peak > {limits.peak_mb:g}")
    if limits.units is not None and figures.units > limits.units:
        found.append(f"moved > {limits.units:g}")
    if limits.seconds is not None and seconds > limits.seconds:
        found.append(f"seconds > {limits.seconds:g}")
    facts = figures.collectives
    min_elems = max(threshold, figures.norm_elems + 1)
    if find_collectives(facts, kind="all-gather", dtype="f32", min_elems=min_elems):
        found.append("f32 gather")
    reduced = find_collectives(facts, kind="all-reduce", min_elems=threshold)
    sizes = {part.num_elems for fact in reduced for part in fact.parts}
    if stage > 0 and any(s >= threshold for s in sizes - figures.whole_elems):
        found.append("large all-reduce")
    if stage >= 2 and figures.carried:
        found.append("whole accumulator")
    if not all(fact.is_runs_known for fact in facts):
        found.append("loops of unknown length")
    return found


def layer_growth_mb(peaks_mb: Mapping[tuple[str, int], float]) -> float | None:
    """Returns what one more unrolled layer adds to the peak at stage 3.

    Args:
        peaks_mb: Device peaks by case and stage.

    Returns:
        10^6 bytes per layer, or None unless both unrolled cases are there.
    """
    few, many = peaks_mb.get(("unroll12", 3)), peaks_mb.get(("unroll24", 3))
    if few is None or many is None:
        return None
    layers = CASES["unroll24"].num_layers - CASES["unroll12"].num_layers
    return (many - few) / layers
