"""A compiled step and its report.

Lives here: `CompiledStep`, which `step.compile` returns. May import: runtime, the
rest of `audit`. Read next: `step_report.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from jzero.audit.findings.finding import announce
from jzero.audit.speeds import find_speeds
from jzero.audit.step_report import StepReport, report_step
from jzero.plan.plan import Plan
from jzero.runtime.program import Program

__all__ = ["CompiledStep", "is_absent"]


class CompiledStep:
    """A step compiled for arguments of given shapes. Calls of the step use it too.

    Attributes:
        plan: The plan it was built from.
        compiled: The `jax.stages.Compiled`, over flat lists of leaves.
    """

    def __init__(self, program: Program) -> None:
        self.plan: Plan = program.plan
        self.compiled: jax.stages.Compiled = program.executable.compiled
        self._positions: Sequence[tuple[int, int]] = program.state_positions
        self._mesh = program.mesh
        self._report: StepReport | None = None

    def report(self) -> StepReport:
        """Returns what the compiler built, against the plan. Nothing runs for it."""
        if self._report is None:
            device = self._mesh.devices.flat[0]
            speeds, speeds_of = find_speeds(self._mesh)
            self._report = report_step(
                self.compiled,
                self.plan,
                positions=self._positions,
                platform=device.platform,
                speeds=speeds,
                speeds_of=speeds_of,
                ran_on=describe_devices(self._mesh),
            )
        return self._report

    def announce_findings(self) -> None:
        """Warns of findings, or raises, as the plan's config says.

        Raises:
            FindingError: There are findings and `on_finding` is "raise".
        """
        policy = self.plan.config.on_finding
        if policy != "ignore":
            report = self.report()
            announce(report.findings, policy, name=report.name)

    def as_text(self) -> str:
        """Returns the compiled program as HLO text."""
        return self.compiled.as_text() or ""


def is_absent(mesh: Mesh) -> bool:
    """Says whether a mesh is of devices that can be compiled for and not run on."""
    return "CompileOnly" in type(mesh.devices.flat[0].client).__name__


def describe_devices(mesh: Mesh) -> str:
    """Says in words what a program was compiled for, and whether that is here."""
    device = mesh.devices.flat[0]
    what = f"compiled for {mesh.size} devices of the kind {device.device_kind!r}"
    if is_absent(mesh):
        return (
            f"{what} that are not here: nothing ran. Memory and collectives are the "
            "compiler's; times are a roofline estimate from stated speeds."
        )
    return (
        f"{what}. Memory and collectives are the compiler's; times are a roofline "
        "estimate from stated speeds, not measured."
    )
