"""What the compiler really built, in one record.

    audit = audit_compiled(step.lower(state, batch).compile())
    print(audit.render())
    audit.memory.device_peak_bytes
    audit.moved_units(num_params)    # 1 at ZeRO stages 0 to 2, 1.5 at stage 3

Lives here: `StepAudit`, its maker and its text. May import: its siblings. Read next:
`pods.py`, for programs of devices that are not there.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from jzero.audit.collectives import read_collectives
from jzero.audit.facts import CollectiveFacts, CollectiveTotals, total_collectives
from jzero.audit.hlo import parse_module
from jzero.audit.memory import MemoryFacts, read_memory

__all__ = ["StepAudit", "audit_compiled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAudit:
    """Memory and communication of one compiled step, per device.

    Attributes:
        name: The program's name.
        num_devices: Devices it runs on.
        memory: Bytes it holds.
        collectives: What it sends, in program order.
    """

    name: str
    num_devices: int
    memory: MemoryFacts
    collectives: tuple[CollectiveFacts, ...]

    @property
    def moved_bytes(self) -> int:
        """Bytes that one device sends per step, loops times their trip counts."""
        return sum(fact.step_moved_bytes for fact in self.collectives)

    @property
    def totals(self) -> tuple[CollectiveTotals, ...]:
        """The collectives summed by kind and dtype, most bytes first."""
        return total_collectives(self.collectives)

    @property
    def num_unknown_runs(self) -> int:
        """Collectives in loops of unknown length, which are counted once."""
        return sum(not fact.is_runs_known for fact in self.collectives)

    def moved_units(self, num_params: int, *, param_bytes: int = 2) -> float:
        """Returns the bytes moved in units of one all-reduce of all gradients.

        Args:
            num_params: Elements of all parameters together.
            param_bytes: Bytes of one gradient element; 2 for 16-bit compute.

        Returns:
            `moved_bytes` over 2 x bytes x params x (N-1)/N; 0 on one device.

        Source:
            ZeRO, arXiv 1910.02054, section 7: 2 Psi for data parallelism.
        """
        n = self.num_devices
        unit_bytes = 2 * param_bytes * num_params * (n - 1) / n
        return self.moved_bytes / unit_bytes if unit_bytes else 0.0

    def render(self, *, num_params: int | None = None, width: int = 88) -> str:
        """Returns the audit as text.

        Args:
            num_params: If given, the bytes moved are also put in units of one
                16-bit all-reduce of that many gradients.
            width: Columns of the text.
        """
        text = io.StringIO()
        console = Console(file=text, width=width, color_system=None)
        console.print(Group(self._head(num_params), self._table()))
        return text.getvalue().rstrip()

    def __str__(self) -> str:
        return self.render()

    def _head(self, num_params: int | None) -> Text:
        memory = self.memory
        lines = [
            f"{self.name} on {self.num_devices} devices, per device, as compiled",
            f"  arguments   {_bytes(memory.argument_bytes):>12}",
            f"  temporaries {_bytes(memory.temp_bytes):>12}",
            f"  device peak {_bytes(memory.device_peak_bytes):>12}"
            "   argument + output - alias + temp",
        ]
        if memory.host_peak_bytes:
            lines.append(f"  host peak   {_bytes(memory.host_peak_bytes):>12}")
        moved = f"  moved       {_bytes(self.moved_bytes):>12}   per step"
        if num_params is not None:
            units = self.moved_units(num_params)
            moved += f", {units:.3f} of a 16-bit all-reduce of the gradients"
        lines.append(moved)
        if self.num_unknown_runs:
            lines.append(
                f"  {self.num_unknown_runs} collectives stand in loops of unknown "
                "length and are counted once"
            )
        if any(fact.is_conditional for fact in self.collectives):
            lines.append("  collectives in branches count as if every branch is taken")
        return Text("\n".join(lines))

    def _table(self) -> Table:
        table = Table()
        for heading in ("collective", "dtype"):
            table.add_column(heading)
        for heading in ("places", "runs", "bytes in", "bytes moved"):
            table.add_column(heading, justify="right")
        for total in self.totals:
            table.add_row(
                total.kind,
                total.dtype,
                str(total.num_sites),
                str(total.num_runs),
                _bytes(total.operand_bytes),
                _bytes(total.moved_bytes),
            )
        return table


def audit_compiled(compiled: Any) -> StepAudit:
    """Reads memory and collectives of a compiled program.

    Args:
        compiled: A `jax.stages.Compiled`, on devices that exist or not.

    Returns:
        The audit. Nothing runs for it.
    """
    module = parse_module(compiled.as_text())
    return StepAudit(
        name=module.name,
        num_devices=module.num_devices,
        memory=read_memory(compiled),
        collectives=read_collectives(module),
    )


def _bytes(num_bytes: int) -> str:
    value, units = float(num_bytes), iter(("B", "kB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while abs(value) >= 1000 and unit != "PB":
        value, unit = value / 1000, next(units)
    return f"{num_bytes} B" if unit == "B" else f"{value:.2f} {unit}"
