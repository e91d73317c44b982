"""Meeting of the processes of a job, with a bounded wait.

Saving is done by all processes together. One that alone calls `save`, or that has
died, would leave the others waiting inside of Orbax; so they meet here first, and who
waits too long is told what for. Lives here: `Meeting`, `process_options`. May import:
Orbax, errors. Read next: `checkpointer.py`.
"""

from __future__ import annotations

import itertools

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from jzero.errors import CheckpointError

__all__ = ["Meeting", "process_options"]


def process_options() -> ocp.options.MultiprocessingOptions:
    """Tells Orbax which processes take part, namely all.

    Without their names it waits for them in a collective, which never ends if one does
    not come; with them, at barriers that end.
    """
    num_processes = jax.process_count()
    return ocp.options.MultiprocessingOptions(
        active_processes=set(range(num_processes)) if num_processes > 1 else None
    )


class Meeting:
    """Where processes meet before they do something together.

    Args:
        name: What the meetings are about; the same in all processes.
        timeout_seconds: How long to wait for the others.
    """

    def __init__(self, name: str, timeout_seconds: float) -> None:
        self._name = name
        self._timeout_seconds = timeout_seconds
        self._numbers = itertools.count()
        self._wait = ocp.multihost.get_barrier_sync_fn()

    def wait(self, call: str) -> None:
        """Waits until every process makes the same call.

        Args:
            call: The call, as the user wrote it, e.g. "save(7)".

        Raises:
            CheckpointError: Another process did not come in time, or came with
                another call.
        """
        if jax.process_count() == 1:
            return
        key = f"jzero:{self._name}:{next(self._numbers)}:{call}"
        try:
            self._wait(key=key, timeout_ms=int(self._timeout_seconds * 1000))
        except jax.errors.JaxRuntimeError as error:
            raise CheckpointError(
                f"process {jax.process_index()} waited {self._timeout_seconds:g} s in "
                f"Checkpointer.{call} for the other {jax.process_count() - 1} "
                "process(es), which have not made this call or have died.\n"
                "Remedy: make the call on every process, with the same step, and look "
                f"for the first error among their logs. ({str(error).splitlines()[0]})"
            ) from error

    def agree(self, number: int | None, call: str) -> int | None:
        """Returns the first process's number on all of them.

        Args:
            number: This process's; None is a choice, too.
            call: As for `wait`.
        """
        if jax.process_count() == 1:
            return number
        self.wait(call)
        mine = np.asarray(-1 if number is None else number, np.int32)
        chosen = int(multihost_utils.broadcast_one_to_all(mine))
        return None if chosen < 0 else chosen
