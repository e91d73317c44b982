"""One thing that a compiled step does and its plan did not ask for.

Lives here: `Finding`, the table of its kinds, and warning or raising with a list of
them. May import: `errors`. Read next: its siblings, which find them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jzero.errors import FindingError, FindingWarning, format_problem

__all__ = ["KINDS", "Finding", "FindingKind", "announce"]

FindingKind = Literal[
    "large-all-reduce",
    "wide-gather",
    "activation-moved",
    "full-rematerialization",
    "gradient-alive",
    "left-whole",
    "donation-lost",
    "no-effect",
]

KINDS: dict[FindingKind, str] = {
    "large-all-reduce": "a gradient is all-reduced where a reduce-scatter was planned",
    "wide-gather": "a leaf used in 16 bits is gathered in 32",
    "activation-moved": "an activation is gathered or exchanged between devices",
    "full-rematerialization": "an array is gathered whole only to be cut up again",
    "gradient-alive": "more gradients wait for their reduction than the window allows",
    "left-whole": "a large leaf of the state is whole on every device",
    "donation-lost": "a donated buffer was not used again",
    "no-effect": "a setting changes nothing at this stage",
}
"""What each kind means, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding.

    Attributes:
        kind: Which.
        where: Path of the leaf, source line, or setting.
        num_bytes: Bytes moved per step or held, per device: what it costs. 0 if
            nothing.
        detail: The numbers.
        remedy: What the user can change.
    """

    kind: FindingKind
    where: str
    num_bytes: int
    detail: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.kind}  {self.where}  {self.detail}. {self.remedy}"


def announce(findings: Sequence[Finding], policy: str, *, name: str) -> None:
    """Warns of findings, or raises.

    Args:
        findings: Worst first.
        policy: "ignore", "warn" or "raise".
        name: Of the program.

    Raises:
        FindingError: There are findings and the policy is "raise".
    """
    if not findings or policy == "ignore":
        return
    rows = [(f"{f.kind}: {f.where}", f"{f.detail}; {f.remedy}") for f in findings]
    things = "1 thing" if len(rows) == 1 else f"{len(rows)} things"
    text = format_problem(
        f"The compiled {name} does {things} that its plan did not ask for:",
        rows,
        "see step.compile(...).report(); ZeroConfig(on_finding=...) takes "
        '"ignore", "warn" or "raise"',
        max_rows=8,
    )
    if policy == "raise":
        raise FindingError(text)
    warnings.warn(text, FindingWarning, stacklevel=4)
