"""One error type per kind of mistake, and the one formatter of their texts.

Lives here: every exception that jzero raises on purpose. A mistake of the user
also subclasses the builtin that fits it, so `except ValueError` works. May import:
nothing. Read next: `config.py`, the first raiser.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "AliasError",
    "BatchError",
    "CheckpointError",
    "CheckpointWarning",
    "ConfigError",
    "DonationError",
    "FindingError",
    "FindingWarning",
    "HostMemoryError",
    "InternalError",
    "JzeroError",
    "LossScaleError",
    "MeshError",
    "MismatchError",
    "ParamsError",
    "PlacementError",
    "StageError",
    "StateError",
    "format_problem",
]


class JzeroError(Exception):
    """The base of every error that jzero raises on purpose."""


class ConfigError(JzeroError, ValueError):
    """A setting is unknown, out of range, or contradicts another one."""


class StageError(ConfigError):
    """The stage is not one of 0, 1, 2, 3."""


class MeshError(JzeroError, ValueError):
    """The mesh lacks an axis that the settings name."""


class StateError(JzeroError, TypeError):
    """No state was found, it is ambiguous, or the step changes its structure."""


class ParamsError(StateError):
    """No parameters were found in the state."""


class BatchError(JzeroError, ValueError):
    """The batch is ambiguous or does not divide over the devices."""


class PlacementError(JzeroError, ValueError):
    """A state lies on another mesh or other devices than the step."""


class DonationError(JzeroError, RuntimeError):
    """A state was used again after a step had taken its buffers."""


class AliasError(JzeroError, ValueError):
    """Two paths of a state share one buffer, so it cannot be donated."""


class CheckpointError(JzeroError, RuntimeError):
    """A checkpoint could not be written, found or read."""


class CheckpointWarning(UserWarning):
    """A folder of checkpoints holds steps that are not complete."""


class MismatchError(JzeroError, ValueError):
    """A checkpoint holds other leaves, shapes or dtypes than the state asked for."""


class FindingError(JzeroError, RuntimeError):
    """A compiled step does what its plan did not ask for, and that was to raise."""


class FindingWarning(UserWarning):
    """A compiled step does what its plan did not ask for."""


class HostMemoryError(JzeroError, ValueError):
    """Host memory is missing, or too small for what is to be offloaded."""


class LossScaleError(JzeroError, ArithmeticError):
    """Gradients overflow at the smallest loss scale: the model has diverged."""


class InternalError(JzeroError, RuntimeError):
    """An invariant of jzero broke; the text names the pass. Please report it."""


def format_problem(
    headline: str,
    rows: Iterable[tuple[str, str]] | Iterable[str] = (),
    remedy: str | None = None,
    *,
    max_rows: int | None = None,
) -> str:
    r"""Builds the text of an error: what is wrong, where, and what to do.

    Args:
        headline: What is wrong, in one sentence.
        rows: One entry per offending leaf, either a `(path, detail)` pair or a
            ready line. The details of pairs are aligned.
        remedy: What the user can change. None leaves the line out.
        max_rows: The most rows to list; the rest is counted. None lists all.

    Returns:
        The headline, one indented line per row, then `Remedy: ...`.

    Example:
        >>> print(format_problem("1 leaf does not divide:", [("w", "(7,)")], "pad it"))
        1 leaf does not divide:
          w  (7,)
        Remedy: pad it
    """
    listed = list(rows)
    num_hidden = 0
    if max_rows is not None and len(listed) > max_rows:
        num_hidden = len(listed) - max_rows
        listed = listed[:max_rows]
    width = max((len(row[0]) for row in listed if not isinstance(row, str)), default=0)
    lines = [headline]
    for row in listed:
        text = row if isinstance(row, str) else f"{row[0]:<{width}}  {row[1]}"
        lines.append(f"  {text}".rstrip())
    if num_hidden:
        lines.append(f"  ... and {num_hidden} more")
    if remedy is not None:
        lines.append(f"Remedy: {remedy}")
    return "\n".join(lines)
