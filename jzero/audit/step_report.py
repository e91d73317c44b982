"""The report of a compiled step: what was planned, and what the compiler built.

    report = step.compile(state, batch).report()
    print(report)                         # tables
    report.findings                       # what the plan did not ask for, worst first
    report.to_dict(); report.to_html()

Lives here: `StepReport` and `report_step`, which makes it. May import: everything
else in `audit`, plan. Read next: `report_text.py` and `report_html.py`, which show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import RenderableType

from jzero.audit.aliases import Argument, read_arguments
from jzero.audit.collectives import read_collectives
from jzero.audit.facts import CollectiveFacts
from jzero.audit.findings.alive import find_waiting, peak_waiting_bytes
from jzero.audit.findings.finding import Finding
from jzero.audit.findings.moved import find_moved
from jzero.audit.findings.planned import (
    find_left_whole,
    find_lost_donations,
    find_no_effect,
)
from jzero.audit.formula import Traffic, plan_traffic
from jzero.audit.hlo import Module, parse_module
from jzero.audit.host_link import HostTraffic, read_host_traffic
from jzero.audit.memory import MemoryFacts, read_memory
from jzero.audit.names import name_leaves
from jzero.audit.report_html import render_html
from jzero.audit.report_text import build_report, render_report
from jzero.audit.timeline import Speeds, Timeline, play_schedule
from jzero.plan.host import DEVICE, HOST
from jzero.plan.layout import local_bytes
from jzero.plan.plan import LeafPlan, Plan

__all__ = ["NamedCollective", "RoleBytes", "StepReport", "report_step"]

_UNKNOWN_SPEEDS = Speeds(
    flops_per_second=1e15,
    memory_bytes_per_second=3e12,
    local_bytes_per_second=4e11,
    remote_bytes_per_second=5e10,
    num_local=8,
)
_ELEM_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleBytes:
    """Bytes of one role at rest on one device.

    Attributes:
        role: "parameter", "optimizer", "other" (of the state), or "data".
        num_leaves: Arrays.
        planned_bytes: By the plan.
        compiled_bytes: What the program's arguments take; arrays that it never reads
            are not among them.
        memory_kind: Where: "device" or "pinned_host".
    """

    role: str
    num_leaves: int
    planned_bytes: int
    compiled_bytes: int
    memory_kind: str = DEVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCollective:
    """One collective, the leaves it moves, and what hides it.

    Attributes:
        facts: What is known of it.
        leaves: Paths of the leaves whose values or gradients it moves, if known.
        hidden_flops: Work scheduled between its start and its end, per execution.
        hidden_accessed_bytes: Likewise, bytes of memory.
        exposed_bytes: Of the bytes of a step, those that nothing hides, at the
            speeds of the report.
    """

    facts: CollectiveFacts
    leaves: tuple[str, ...]
    hidden_flops: int
    hidden_accessed_bytes: int
    exposed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one compiled step holds and sends per device, against its plan.

    Attributes:
        name: The program's name.
        plan: The plan.
        num_devices: Devices it runs on.
        platform: "cpu", "gpu" or "tpu".
        ran_on: Says in words whether the devices are there.
        memory: Bytes it holds.
        host_traffic: What it copies to and from host memory in a step.
        resident: Bytes at rest by role.
        waiting_gradient_bytes: The most bytes of whole gradients alive at once.
        lost_donation_bytes: Of donated buffers that nothing reuses.
        collectives: What it sends, in program order.
        traffic: What the papers' formula has it send.
        elem_bytes: Bytes of one element in that formula.
        flops: Floating point operations of products, loops multiplied.
        timeline: The schedule at stated speeds: an estimate, nothing was timed.
        speeds: These speeds.
        speeds_of: Of which device, "unknown" if nominal ones were taken.
        findings: What the plan did not ask for, worst first.
    """

    name: str
    plan: Plan
    num_devices: int
    platform: str
    ran_on: str
    memory: MemoryFacts
    host_traffic: HostTraffic
    resident: tuple[RoleBytes, ...]
    waiting_gradient_bytes: int
    lost_donation_bytes: int
    collectives: tuple[NamedCollective, ...]
    traffic: Traffic
    elem_bytes: int
    flops: int
    timeline: Timeline
    speeds: Speeds
    speeds_of: str
    findings: tuple[Finding, ...]

    @property
    def moved_bytes(self) -> int:
        """Bytes that one device sends per step, loops times their trip counts."""
        return sum(c.facts.step_moved_bytes for c in self.collectives)

    @property
    def exposed_bytes(self) -> int:
        """Of these, what nothing hides, at the speeds of the report."""
        return sum(c.exposed_bytes for c in self.collectives)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain dicts, lists, texts and numbers, as for JSON."""
        timeline = self.timeline
        return {
            "name": self.name,
            "stage": self.plan.stage,
            "axis_sizes": dict(self.plan.axis_sizes),
            "num_devices": self.num_devices,
            "platform": self.platform,
            "ran_on": self.ran_on,
            "memory": {
                **asdict(self.memory),
                "device_peak_bytes": self.memory.device_peak_bytes,
                "host_peak_bytes": self.memory.host_peak_bytes,
            },
            "host_traffic": asdict(self.host_traffic),
            "resident": [asdict(row) for row in self.resident],
            "waiting_gradient_bytes": self.waiting_gradient_bytes,
            "lost_donation_bytes": self.lost_donation_bytes,
            "collectives": [_collective_dict(row) for row in self.collectives],
            "moved_bytes": self.moved_bytes,
            "exposed_bytes": self.exposed_bytes,
            "formula": {
                **asdict(self.traffic),
                "moved_bytes": self.traffic.moved_bytes,
                "elem_bytes": self.elem_bytes,
                "num_micro_batches": self.plan.num_micro_batches,
            },
            "flops": self.flops,
            "estimate": {
                "speeds_of": self.speeds_of,
                "speeds": asdict(self.speeds),
                "seconds": timeline.seconds,
                "compute_seconds": timeline.compute_seconds,
                "network_seconds": timeline.network_seconds,
                "exposed_seconds": timeline.exposed_seconds,
                "events": [asdict(event) for event in timeline.events],
            },
            "findings": [asdict(finding) for finding in self.findings],
        }

    def to_html(self, *, hbm_bytes: int | None = None) -> str:
        """Returns the report as one HTML page that needs nothing else.

        Args:
            hbm_bytes: Memory of one device, drawn as a limit if given.
        """
        return render_html([self.to_dict()], hbm_bytes=hbm_bytes)

    def __rich__(self) -> RenderableType:
        """Shows the report in colour with `rich.print(report)`."""
        return build_report(self)

    def __str__(self) -> str:
        """Writes the report as plain text."""
        return render_report(self)


def report_step(
    compiled: Any,
    plan: Plan,
    *,
    positions: Sequence[tuple[int, int]],
    platform: str,
    speeds: Speeds | None = None,
    speeds_of: str = "unknown",
    ran_on: str = "",
) -> StepReport:
    """Reads a compiled step and compares it with its plan.

    Args:
        compiled: A `jax.stages.Compiled`, on devices that exist or not.
        plan: Its plan.
        positions: (argument, leaf of that argument) of each state leaf of the plan.
        platform: Of the devices: "cpu", "gpu" or "tpu".
        speeds: Of the device; None takes nominal ones.
        speeds_of: The device's name.
        ran_on: Words on whether the devices are there.

    Returns:
        The report. Nothing runs for it.
    """
    module = parse_module(compiled.as_text())
    facts = read_collectives(module)
    arguments = read_arguments(module)
    leaves = dict(zip(positions, plan.state, strict=True))
    chosen = speeds or _UNKNOWN_SPEEDS
    timeline = play_schedule(module, facts, chosen)
    elem_bytes = _elem_bytes(facts, plan)
    lost = tuple(find_lost_donations(arguments, leaves))
    findings = (
        *find_left_whole(plan),
        *lost,
        *find_no_effect(plan),
        *find_moved(module, facts, plan, leaves, platform),
        *find_waiting(module, facts, plan),
    )
    return StepReport(
        name=module.name,
        plan=plan,
        num_devices=module.num_devices,
        platform=platform,
        ran_on=ran_on,
        memory=read_memory(compiled, planned_host_bytes=plan.host_bytes),
        host_traffic=read_host_traffic(module),
        resident=_resident(plan, arguments, leaves),
        waiting_gradient_bytes=peak_waiting_bytes(module, facts),
        lost_donation_bytes=sum(finding.num_bytes for finding in lost),
        collectives=_named(module, facts, plan, timeline),
        traffic=plan_traffic(plan, elem_bytes=elem_bytes),
        elem_bytes=elem_bytes,
        flops=timeline.work.flops,
        timeline=timeline,
        speeds=chosen,
        speeds_of=speeds_of,
        findings=tuple(sorted(findings, key=lambda f: -f.num_bytes)),
    )


def _resident(
    plan: Plan,
    arguments: Sequence[Argument],
    leaves: dict[tuple[int, int], LeafPlan],
) -> tuple[RoleBytes, ...]:
    compiled: dict[tuple[str, str], int] = {}
    for argument in arguments:
        leaf = leaves.get(argument.position) if argument.position else None
        row = ("data", DEVICE) if leaf is None else (leaf.role, leaf.memory_kind)
        compiled[row] = compiled.get(row, 0) + argument.num_bytes
    sizes = dict(plan.axis_sizes)
    planned: dict[tuple[str, str], list[int]] = {}
    for total in plan.totals:
        for kind in (DEVICE, HOST):
            planned[total.role, kind] = [
                leaf.local_bytes
                for leaf in plan.state
                if (leaf.role, leaf.memory_kind) == (total.role, kind)
            ]
    planned["data", DEVICE] = [
        local_bytes(leaf.shape, leaf.dtype, leaf.spec, sizes) for leaf in plan.batch
    ]
    return tuple(
        RoleBytes(
            role=role,
            num_leaves=len(leaf_bytes),
            planned_bytes=sum(leaf_bytes),
            compiled_bytes=compiled.get((role, kind), 0),
            memory_kind=kind,
        )
        for (role, kind), leaf_bytes in planned.items()
        if leaf_bytes
    )


def _named(
    module: Module, facts: Sequence[CollectiveFacts], plan: Plan, timeline: Timeline
) -> tuple[NamedCollective, ...]:
    named: list[NamedCollective] = []
    by_name: dict[str, int] = {}
    for fact in facts:
        by_name[fact.name] = by_name.get(fact.name, 0) + fact.step_moved_bytes
    for fact in facts:
        hiding = timeline.hiding.get(fact.name)
        total_bytes = by_name[fact.name]
        exposed = fact.step_moved_bytes
        if hiding is not None and total_bytes:
            exposed = round(hiding.exposed_bytes * fact.step_moved_bytes / total_bytes)
        named.append(
            NamedCollective(
                facts=fact,
                leaves=tuple(leaf.path for leaf in name_leaves(fact, plan)),
                hidden_flops=hiding.between.flops if hiding else 0,
                hidden_accessed_bytes=hiding.between.accessed_bytes if hiding else 0,
                exposed_bytes=exposed,
            )
        )
    return tuple(named)


def _elem_bytes(facts: Sequence[CollectiveFacts], plan: Plan) -> int:
    """Bytes of an element as the model computes: the dtype that moves most."""
    moved: dict[str, int] = {}
    for fact in facts:
        if fact.dtype in _ELEM_BYTES:
            moved[fact.dtype] = moved.get(fact.dtype, 0) + fact.step_moved_bytes
    if moved:
        return _ELEM_BYTES[max(moved, key=moved.__getitem__)]
    sizes = {leaf.dtype.itemsize for leaf in plan.state if leaf.role == "parameter"}
    return min(sizes, default=4)


def _collective_dict(row: NamedCollective) -> dict[str, Any]:
    fact = row.facts
    return {
        "kind": fact.kind,
        "dtype": fact.dtype,
        "operands": [str(operand) for operand in fact.operands],
        "operand_bytes": fact.operand_bytes,
        "moved_bytes": fact.moved_bytes,
        "runs": fact.runs,
        "is_runs_known": fact.is_runs_known,
        "is_conditional": fact.is_conditional,
        "group_size": fact.group_size,
        "num_groups": fact.num_groups,
        "is_async": fact.is_async,
        "op_name": fact.op_name,
        "source": fact.source,
        "name": fact.name,
        "leaves": list(row.leaves),
        "step_moved_bytes": fact.step_moved_bytes,
        "hidden_flops": row.hidden_flops,
        "hidden_accessed_bytes": row.hidden_accessed_bytes,
        "exposed_bytes": row.exposed_bytes,
    }
