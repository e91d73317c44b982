"""The quick path of a call: a state that comes straight back from the last one.

Lives here: `Quick`. May import: runtime. Read next: `jzero/step.py`.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jzero.runtime.batches import place_data, shape_of
from jzero.runtime.program import Program

# So many leaves are watched: when one is freed, so are the others we hold.
_NUM_WATCHES = 16


@dataclass(frozen=True, slots=True)
class Quick:
    """What the last call returned, if the next may go straight to its program.

    A state that comes straight back needs no inspection, but its leaves are all
    compared, since a dict may have been edited in place. They are held for that: weak
    references to each cost more than the rest of a call. A user who drops the state
    must get its memory back, so the first watched leaf that dies lets all go.

    Attributes:
      program: the program of the last call.
      state: the state leaves that it returned.
      stride: every so many are watched: all of a few, some of many.
      watches: weak references to these.
      shapes: of the other arguments.
    """

    program: Program
    state: list[Any]
    stride: int
    watches: list[weakref.ref[Any]]
    shapes: tuple[Any, ...]

    @classmethod
    def after(cls, program: Program, outs: list[Any], shapes: tuple[Any, ...]) -> Quick:
        """Remembers what a call returned, but for the watched leaves themselves."""
        state = program.new_state(outs)

        def let_go(_: Any) -> None:
            state.clear()

        stride = max(1, len(state) // _NUM_WATCHES)
        watches = [weakref.ref(leaf, let_go) for leaf in state[::stride]]
        state[::stride] = [None] * len(watches)
        return cls(program, state, stride, watches, shapes)

    def accept(self, args: Sequence[Any]) -> list[list[Any]] | None:
        """Returns the leaves, data placed, of arguments that continue the last call.

        From now on all leaves are held: the call that follows takes their buffers.

        Raises:
          ValueError: an argument has another structure.
        """
        program = self.program
        treedefs = program.arg_treedefs
        state_args = program.state_args
        if len(args) != len(treedefs) or not self.state:
            return None
        # Takes half the time of flattening and comparing structures.
        lists = [
            treedef.flatten_up_to(arg)
            for treedef, arg in zip(treedefs, args, strict=True)
        ]
        self.state[:: self.stride] = [watch() for watch in self.watches]
        expected = iter(self.state)
        data: list[Any] = []
        for i, leaves in enumerate(lists):
            if i not in state_args:
                data += leaves
            # Not `id`: it is an audited call, 30 times dearer than `is`.
            elif not all(map(operator.is_, leaves, expected)):
                return None
        if tuple(map(shape_of, data)) != self.shapes:
            return None
        placed = place_data(data, program)
        if placed is not data:
            rest = iter(placed)
            for i, leaves in enumerate(lists):
                if i not in state_args:
                    lists[i] = list(itertools.islice(rest, len(leaves)))
        return lists
