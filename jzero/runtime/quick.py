"""The quick path of a call: a state that comes straight back from the last one.

Lives here: `Quick`. May import: runtime. Read next: `jzero/step.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jzero.runtime.batches import place_data
from jzero.runtime.calls import Call, Key
from jzero.runtime.held import Held
from jzero.runtime.program import Program


class Quick:
    """A call as the last one was spelled, if it may go straight to its program.

    A state that comes straight back needs no inspection, but its leaves are all
    compared, since a dict may have been edited in place: a user's own array is not to
    be donated, and one buffer at two paths fails on one device while others wait.

    What does not fit the compiled program in another way, the program itself refuses.
    """

    __slots__ = (
        "_data",
        "_finish",
        "_held",
        "_is_moved",
        "_keys",
        "_num_args",
        "_program",
        "_run",
        "_states",
        "_statics",
        "_types",
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
        self._run = program.executable.compiled
        # One call less where the step returns its results as the program does.
        unflatten = program.out_treedef.unflatten
        self._finish = unflatten if program.is_direct else program.finish
        flatten = [treedef.flatten_up_to for treedef in program.arg_treedefs]
        self._num_args = len(flatten)
        self._states = [(i, flatten[i]) for i in program.state_args]
        self._data = [
            (i, flatten[i])
            for i in range(self._num_args)
            if i not in program.state_args
        ]
        # The program would take a Python number for an array, which promotes others.
        self._types = list(map(type, data))
        # Most calls are nothing but positional arrays.
        is_plain = call.keys == tuple(range(call.num_positional)) and not call.statics
        self._keys: tuple[Key, ...] | None = None if is_plain else call.keys
        self._statics = call.statics
        # Among several processes host arrays have to be refused by us.
        self._is_moved = is_moved or jax.process_count() > 1
        self._held = Held(program.keep_state, len(program.state_flat))
        self._held.keep(outs)

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Runs a call that continues the last one, and returns what the step does.

        Returns:
          The step's result, or `NotImplemented` if the call must be looked at.

        Raises:
          ValueError, TypeError, RuntimeError, IndexError: an argument has another
            structure, or the program refused one; nothing has run.
        """
        values: Sequence[Any] = args
        if kwargs or self._keys is not None:
            found = self._dynamic(args, kwargs)
            if found is None:
                return NotImplemented
            values = found
        if len(values) != self._num_args:
            return NotImplemented
        lists: list[Any] = list(values)
        states: list[Any] = []
        for i, flatten in self._states:
            # Takes half the time of flattening and comparing structures.
            lists[i] = leaves = flatten(values[i])
            states.append(leaves)
        data: list[Any] = []
        for i, flatten in self._data:
            lists[i] = leaves = flatten(values[i])
            data += leaves
        if list(map(type, data)) != self._types or not self._held.release(states):
            return NotImplemented
        if self._is_moved:
            rest = iter(place_data(data, self._program))
            for i, _ in self._data:
                lists[i] = list(itertools.islice(rest, len(lists[i])))
        outs = self._run(*lists)
        result = self._finish(outs)
        self._held.keep(outs)
        return result

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
