"""What jobs report, and how the rounds of one case become one row."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import Case
from benchmarks.peers.worker import PREFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one job saw.

    Attributes:
        case: What was run.
        losses: Per step, the mean over the processes.
        rounds: Per round and timed step the seconds, of the slowest process.
        cpu_rounds: Likewise, of the processor instead of the clock, in which waiting
            for the other process or for a busy machine does not count.
        state_bytes: Held between steps by the process that holds most.
        peak_bytes: Resident memory at its peak in the timed steps, likewise.
        versions: Of the packages that matter.
    """

    case: Case
    losses: tuple[float, ...]
    rounds: tuple[tuple[float, ...], ...]
    cpu_rounds: tuple[tuple[float, ...], ...]
    state_bytes: int
    peak_bytes: int
    versions: dict[str, str]

    @property
    def step_seconds(self) -> float:
        """The median step of the fastest round: others may use the machine too."""
        return min(map(statistics.median, self.rounds))

    @property
    def cpu_seconds(self) -> float:
        """The median step of the fastest round, in seconds of the processor."""
        return min(map(statistics.median, self.cpu_rounds))

    @property
    def slowest_seconds(self) -> float:
        """The median step of the slowest round."""
        return max(map(statistics.median, self.rounds))


def parse(outputs: Sequence[str]) -> Result:
    """Reads the reports out of what the processes of a job printed.

    Raises:
      ValueError: a process printed none, or more than one.
    """
    reports: list[dict[str, Any]] = []
    for output in outputs:
        lines = [x for x in output.splitlines() if x.startswith(PREFIX)]
        if len(lines) != 1:
            raise ValueError(f"{len(lines)} reports instead of 1 in:\n{output[-1000:]}")
        reports.append(json.loads(lines[0].removeprefix(PREFIX)))
    losses = zip(*(r["losses"] for r in reports), strict=True)

    def slowest(key: str) -> tuple[float, ...]:
        steps = zip(*(r[key] for r in reports), strict=True)
        return tuple(max(step) for step in steps)

    return Result(
        case=Case(**reports[0]["case"]),
        losses=tuple(statistics.fmean(step) for step in losses),
        rounds=(slowest("seconds"),),
        cpu_rounds=(slowest("cpu_seconds"),),
        state_bytes=max(r["state_bytes"] for r in reports),
        peak_bytes=max(r["peak_bytes"] for r in reports),
        versions=reports[0]["versions"],
    )


def save(path: Path, results: Sequence[Result]) -> None:
    """Writes results, of which one case may have several, as JSON."""
    path.write_text(json.dumps([dataclasses.asdict(result) for result in results]))


def load(path: Path) -> list[Result]:
    """Reads what `save` wrote."""
    found: list[Result] = []
    for fields in json.loads(path.read_text()):
        fields["case"] = Case(**fields["case"])
        fields["losses"] = tuple(fields["losses"])
        for key in ("rounds", "cpu_rounds"):
            fields[key] = tuple(tuple(timed) for timed in fields[key])
        found.append(Result(**fields))
    return found


def merge(rounds: Iterable[Result]) -> list[Result]:
    """Puts together all rounds of each case, in order of appearance.

    Losses are those of the first round: they do not depend on the round.
    """
    found: dict[Case, list[Result]] = {}
    for result in rounds:
        found.setdefault(result.case, []).append(result)
    return [
        Result(
            case=case,
            losses=results[0].losses,
            rounds=tuple(timed for r in results for timed in r.rounds),
            cpu_rounds=tuple(timed for r in results for timed in r.cpu_rounds),
            state_bytes=max(r.state_bytes for r in results),
            peak_bytes=max(r.peak_bytes for r in results),
            versions=results[0].versions,
        )
        for case, results in found.items()
    ]
