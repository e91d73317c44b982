"""The schedule of a compiled program, played through with stated speeds.

Lives here: `play_schedule`, which runs through the instructions in the order that the
compiler gave them, with one stream for arithmetic and one for the network, and says
what of the network's time something hides. It is an estimate from speeds on paper:
nothing ran. May import: `hlo`, `loops`, `work`, `facts`. Read next: `step_report.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from jzero.audit.facts import CollectiveFacts
from jzero.audit.hlo import Computation, Instruction, Module
from jzero.audit.loops import count_trips
from jzero.audit.work import Work, WorkCounter

__all__ = ["Event", "Hiding", "Speeds", "Timeline", "play_schedule"]

_MAX_EVENTS = 3000
_CALLS = ("call", "conditional", "async-start")
_CALLED = (
    "to_apply", "calls", "branch_computations", "true_computation", "false_computation",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What one device can do at best.

    Attributes:
        flops_per_second: Of dense 16-bit matrix products.
        memory_bytes_per_second: To and from its own memory.
        local_bytes_per_second: Sent to devices of the same host or slice.
        remote_bytes_per_second: Sent to devices of other hosts.
        num_local: Devices of one host or slice.
    """

    flops_per_second: float
    memory_bytes_per_second: float
    local_bytes_per_second: float
    remote_bytes_per_second: float
    num_local: int

    def work_seconds(self, work: Work) -> float:
        """Time of an instruction: by arithmetic or by memory, whichever is longer."""
        return max(
            work.flops / self.flops_per_second,
            work.accessed_bytes / self.memory_bytes_per_second,
        )

    def moved_seconds(self, moved_bytes: int, group_size: int) -> float:
        """Time of a ring over a group; one of several hosts uses all their links."""
        seconds = moved_bytes / self.local_bytes_per_second
        if group_size > self.num_local:
            links = self.remote_bytes_per_second * self.num_local
            seconds = max(seconds, moved_bytes / links)
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One bar of the timeline.

    Attributes:
        lane: "compute" or "network".
        start_seconds: Since the start of the step.
        end_seconds: Likewise.
        label: The phase of the step, or the kind of collective.
        name: The collective's instruction, empty for arithmetic.
    """

    lane: str
    start_seconds: float
    end_seconds: float
    label: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hiding:
    """What runs while one collective does.

    Attributes:
        between: Work scheduled between its start and its end, in one execution.
        exposed_bytes: The part of its bytes, in all executions of a step, whose time
            nothing hides.
    """

    between: Work
    exposed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One step by the compiler's order and stated speeds: an estimate.

    Attributes:
        seconds: From start to end.
        compute_seconds: Of arithmetic and memory alone.
        network_seconds: Of collectives alone.
        exposed_seconds: In which arithmetic waits for the network.
        work: All of it.
        events: What to draw; the turns of long loops are left out.
        hiding: By instruction name of the collective.
    """

    seconds: float
    compute_seconds: float
    network_seconds: float
    exposed_seconds: float
    work: Work
    events: tuple[Event, ...]
    hiding: Mapping[str, Hiding]


def play_schedule(
    module: Module, facts: Iterable[CollectiveFacts], speeds: Speeds
) -> Timeline:
    """Plays a program through.

    Args:
        module: The compiled program; its instructions stand in schedule order.
        facts: Its collectives.
        speeds: Of the device.

    Returns:
        The timeline. Loops of unknown length run once, branches are all taken.
    """
    # What is called from several places is listed for each of them.
    moved: dict[str, tuple[str, int, int]] = {}
    for fact in {(fact.name, fact.dtype): fact for fact in facts}.values():
        kind, num_bytes, group = moved.get(fact.name, (fact.kind, 0, fact.group_size))
        moved[fact.name] = (kind, num_bytes + fact.moved_bytes, group)
    player = _Player(module, moved, speeds)
    played = player.play(module.entry_computation)
    return Timeline(
        seconds=played.seconds,
        compute_seconds=played.compute_seconds,
        network_seconds=played.network_seconds,
        exposed_seconds=played.exposed_seconds,
        work=played.work,
        events=tuple(sorted(played.events, key=lambda event: event.start_seconds)),
        hiding=dict(player.hiding),
    )


@dataclass(slots=True)
class _Played:
    seconds: float = 0.0
    network_free: float = 0.0
    compute_seconds: float = 0.0
    network_seconds: float = 0.0
    exposed_seconds: float = 0.0
    work: Work = field(default_factory=Work)
    events: list[Event] = field(default_factory=list)


class _Player:
    def __init__(
        self, module: Module, moved: dict[str, tuple[str, int, int]], speeds: Speeds
    ) -> None:
        self.module = module
        self.moved = moved
        self.speeds = speeds
        self.counter = WorkCounter(module)
        self.hiding: dict[str, Hiding] = {}
        self.runs = 1

    def play(self, computation: Computation) -> _Played:
        state = _Played()
        pending: dict[str, tuple[float, float, Work]] = {}
        for instruction in computation.instructions.values():
            name, opcode = instruction.name, instruction.opcode
            if opcode == "while":
                self._loop(computation, instruction, state)
            elif name in self.moved:
                kind, num_bytes, group = self.moved[name]
                needed = self.speeds.moved_seconds(num_bytes, group)
                start = max(state.seconds, state.network_free)
                state.network_free = start + needed
                state.network_seconds += needed
                _draw(state, "network", start, start + needed, kind, name)
                if opcode.endswith("-start"):
                    pending[name] = (start + needed, needed, state.work)
                else:
                    self._wait(state, name, start + needed, needed, Work())
            elif opcode.endswith("-done") and instruction.operands[0] in pending:
                start_name = instruction.operands[0]
                end, needed, before = pending.pop(start_name)
                self._wait(state, start_name, end, needed, _minus(state.work, before))
            elif opcode in _CALLS:
                self._call(instruction, state)
            else:
                work = self.counter.count(computation, instruction)
                needed = self.speeds.work_seconds(work)
                start, state.seconds = state.seconds, state.seconds + needed
                state.compute_seconds += needed
                state.work += work
                _draw(state, "compute", start, state.seconds, _phase(instruction))
        state.seconds = max(state.seconds, state.network_free)
        return state

    def _wait(
        self, state: _Played, name: str, end: float, needed: float, between: Work
    ) -> None:
        exposed = min(needed, max(0.0, end - state.seconds))
        state.seconds = max(state.seconds, end)
        state.exposed_seconds += exposed
        share = exposed / needed if needed else 0.0
        before = self.hiding.get(name, Hiding(between=between, exposed_bytes=0))
        num_bytes = round(self.moved[name][1] * share) * self.runs
        self.hiding[name] = replace(
            before, exposed_bytes=before.exposed_bytes + num_bytes
        )

    def _loop(
        self, computation: Computation, loop: Instruction, state: _Played
    ) -> None:
        trips = count_trips(self.module, computation, loop)
        trips = 1 if trips is None else trips
        for name in loop.called("body"):
            outside, self.runs = self.runs, self.runs * trips
            self._join(state, self.play(self.module.computations[name]), trips)
            self.runs = outside

    def _call(self, instruction: Instruction, state: _Played) -> None:
        for attribute in _CALLED:
            for name in instruction.called(attribute):
                self._join(state, self.play(self.module.computations[name]), 1)

    def _join(self, state: _Played, inner: _Played, trips: int) -> None:
        start = max(state.seconds, state.network_free if inner.network_seconds else 0)
        events = inner.events
        num_drawn = min(trips, max(1, _MAX_EVENTS // max(len(events), 1)))
        state.events += [
            replace(
                event,
                start_seconds=event.start_seconds + start + turn * inner.seconds,
                end_seconds=event.end_seconds + start + turn * inner.seconds,
            )
            for turn in range(num_drawn)
            for event in events
        ]
        state.seconds = start + trips * inner.seconds
        if inner.network_seconds:
            state.network_free = max(state.network_free, state.seconds)
        state.compute_seconds += trips * inner.compute_seconds
        state.network_seconds += trips * inner.network_seconds
        state.exposed_seconds += trips * inner.exposed_seconds
        state.work += inner.work.times(trips)


def _minus(after: Work, before: Work) -> Work:
    return Work(
        after.flops - before.flops, after.accessed_bytes - before.accessed_bytes
    )


def _phase(instruction: Instruction) -> str:
    path = instruction.op_name
    if "transpose(" in path or "rematted_computation" in path:
        return "backward"
    return "forward" if "jvp(" in path else "update"


def _draw(
    state: _Played, lane: str, start: float, end: float, label: str, name: str = ""
) -> None:
    """Adds a bar; neighbouring ones of the same phase become one."""
    if end <= start:
        return
    last = state.events[-1] if state.events else None
    same = last is not None and not name and (last.lane, last.label) == (lane, label)
    if last is not None and same and start <= last.end_seconds:
        state.events[-1] = replace(last, end_seconds=end)
        return
    state.events.append(
        Event(lane=lane, start_seconds=start, end_seconds=end, label=label, name=name)
    )
