"""The leaves that a step returned, to be compared with those it is given next.

Lives here: `Held`. May import: nothing. Read next: `quick.py`, which asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any
from weakref import ref


class Held:
    """The leaves of a state, held until it comes back or is dropped.

    They are held since weak references to each cost more than the rest of a call. A
    user who drops the state must get its memory back: some leaves are watched, and
    the first of these that dies lets all go.
    """

    __slots__ = ("_pick", "_state", "_watched", "_watches")

    def __init__(self, pick: Callable[[list[Any]], list[Any]], num_leaves: int) -> None:
        """Holds nothing yet.

        Args:
          pick: leaves only the new state in a list of what a program returned.
          num_leaves: how many these are.
        """
        self._pick = pick
        # Of parameters, optimizer and what else there is, some may be dropped alone.
        self._watched = sorted({0, num_leaves // 2, num_leaves - 1})
        self._state: list[Any] = []
        self._watches: list[tuple[int, ref[Any]]] = []

    def release(self, lists: Sequence[Sequence[Any]]) -> bool:
        """Says whether these are the very leaves that are held, and lets them go."""
        state = self._state
        if not state:
            return False
        for number, watch in self._watches:
            state[number] = watch()
        expected = iter(state)
        is_same = True
        for leaves in lists:
            # Not `id`: it is an audited call, 30 times dearer than `is`.
            is_same = is_same and all(map(is_, leaves, expected))
        # Now, and not after the next call, when the leaves have left the caches.
        state.clear()
        return is_same

    def keep(self, outs: list[Any]) -> None:
        """Holds the state that a program returned.

        Args:
          outs: all it returned. The list is taken over: another would count the
            references of all leaves anew.
        """
        self._state = state = self._pick(outs)

        def let_go(_: Any) -> None:
            state.clear()

        self._watches = [(i, ref(state[i], let_go)) for i in self._watched]
        for i in self._watched:
            state[i] = None
