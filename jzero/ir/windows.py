"""A bound on the bytes that wait, one after the other.

Lives here: `Window`. May import: compat. Read next: `jzero/passes/offload.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from jzero.compat.jaxpr import Atom

__all__ = ["Window"]


class Window:
    """What came in so far, and what shows that it is gone again."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entered: list[tuple[int, tuple[Atom, ...]]] = []

    def guards(self, num_bytes: int) -> list[Atom]:
        """What must be there before so many bytes more fit in.

        Of those that entered the last that has to be gone: each waited for those
        before it. Empty while all fit in together.
        """
        total = num_bytes
        for waiting, gone in reversed(self._entered):
            total += waiting
            if total > self._max_bytes:
                return list(gone)
        return []

    def add(self, num_bytes: int, gone: Sequence[Atom]) -> None:
        """Lets so many bytes in; they are gone when `gone` is there."""
        self._entered.append((num_bytes, tuple(gone)))
