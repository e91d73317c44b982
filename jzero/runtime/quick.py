"""The quick path of a call: a state that comes straight back from the last one.

Lives here: `Quick`. May import: runtime. Read next: `jzero/step.py`.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jzero.runtime.batches import place_data, shape_of
from jzero.runtime.calls import Call, Key
from jzero.runtime.program import Program

# So many leaves are watched: when one is freed, so are the others we hold.
_NUM_WATCHES = 4


class Quick:
    """A call as the last one was spelled, if it may go straight to its program.

    A state that comes straight back needs no inspection, but its leaves are all
    compared, since a dict may have been edited in place. They are held for that: weak
    references to each cost more than the rest of a call. A user who drops the state
    must get its memory back, so the first watched leaf that dies lets all go.

    What does not fit the compiled program in another way, the program itself refuses.
    """

    __slots__ = (
        "_data_args",
        "_is_moved",
        "_keys",
        "_program",
        "_shapes",
        "_state",
        "_statics",
        "_watches",
    )

    def __init__(
        self,
        program: Program,
        call: Call,
        outs: list[Any],
        *,
        data: Sequence[Any],
        is_moved: bool,
    ) -> None:
        """Remembers a call and what it returned.

        Args:
          program: that it ran.
          call: how it was spelled.
          outs: flat results, from which the leaves of the new state are kept.
          data: its leaves that are not state.
          is_moved: these did not lie where the program wants them, so those of the
            next call will hardly do either.
        """
        self._program = program
        num_args = len(program.arg_treedefs)
        self._data_args = [i for i in range(num_args) if i not in program.state_args]
        # The program would take a Python number for an array, which promotes others.
        self._shapes = list(map(shape_of, data))
        # Most calls are nothing but positional arrays.
        is_plain = call.keys == tuple(range(call.num_positional)) and not call.statics
        self._keys: tuple[Key, ...] | None = None if is_plain else call.keys
        self._statics = call.statics
        # Among several processes host arrays have to be refused by us.
        self._is_moved = is_moved or jax.process_count() > 1
        self._keep(outs)

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Runs a call that continues the last one, and returns what the step does.

        Returns:
          The step's result, or `NotImplemented` if the call must be looked at.

        Raises:
          ValueError, TypeError, RuntimeError, IndexError: an argument has another
            structure, or the program refused one; nothing has run.
        """
        program, state = self._program, self._state
        if not state:
            return NotImplemented
        values: Sequence[Any] = args
        if kwargs or self._keys is not None:
            found = self._dynamic(args, kwargs)
            if found is None:
                return NotImplemented
            values = found
        # Takes half the time of flattening and comparing structures.
        lists = [
            treedef.flatten_up_to(value)
            for treedef, value in zip(program.arg_treedefs, values, strict=True)
        ]
        # From now on all leaves are held: the call takes their buffers.
        for number, watch in self._watches:
            state[number] = watch()
        expected = iter(state)
        for i in program.state_args:
            # Not `id`: it is an audited call, 30 times dearer than `is`.
            if not all(map(operator.is_, lists[i], expected)):
                return NotImplemented
        data = [leaf for i in self._data_args for leaf in lists[i]]
        if list(map(shape_of, data)) != self._shapes:
            return NotImplemented
        if self._is_moved:
            rest = iter(place_data(data, program))
            for i in self._data_args:
                lists[i] = list(itertools.islice(rest, len(lists[i])))
        outs = program.call(lists)
        self._keep(outs)
        return program.finish(outs)

    def _keep(self, outs: list[Any]) -> None:
        """Remembers the new state, but for the watched leaves themselves."""
        state = self._program.new_state(outs)

        def let_go(_: Any) -> None:
            state.clear()

        stride = max(1, len(state) // _NUM_WATCHES)
        self._watches = [
            (number, weakref.ref(state[number], let_go))
            for number in range(0, len(state), stride)
        ]
        for number, _ in self._watches:
            state[number] = None
        self._state = state

    def _dynamic(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> list[Any] | None:
        """Takes the static arguments out, if they are those of the last call."""
        given: dict[Key, Any] = {**dict(enumerate(args)), **kwargs}
        for key, value in self._statics:
            if key not in given or given.pop(key) != value:
                return None
        keys = self._keys or ()
        if len(given) != len(keys) or not all(key in given for key in keys):
            return None
        return [given[key] for key in keys]
