"""`Checkpointer`: saves a state while training goes on, and restores it anywhere.

Lives here: the object that users hold, and turning what fails inside of Orbax into
errors that say what and where. May import: everything in this folder. Read next:
`docs/checkpoints.md`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self, get_args

import jax
import orbax.checkpoint as ocp
from etils import epath

from jzero.checkpoint.compare import What, compare, raise_mismatch
from jzero.checkpoint.contents import describe_leaves, find_aliases, make_manifest
from jzero.checkpoint.failures import save_error
from jzero.checkpoint.finding import find_step
from jzero.checkpoint.handlers import RecordSave
from jzero.checkpoint.iterators import encode_state
from jzero.checkpoint.manifest import (
    DATA_ITEM,
    MANIFEST_ITEM,
    STATE_ITEM,
    read_manifest,
)
from jzero.checkpoint.processes import Meeting
from jzero.checkpoint.restoring import fill_up, restore_data, restore_leaves
from jzero.checkpoint.saving import (
    Snapshot,
    arrays_to_save,
    make_manager,
    remove_unfinished,
    save_arguments,
    size_bytes,
)
from jzero.checkpoint.steps import SavedStep, latest_complete, scan_steps
from jzero.errors import CheckpointError, ConfigError, JzeroError, format_problem
from jzero.runtime.birth import Birth
from jzero.runtime.states import StateView

__all__ = ["Checkpointer"]


class Planner(Protocol):
    """What a checkpointer needs of a training step; `jzero.TrainStep` is one."""

    def birth(self, create_fn: Callable[..., Any], *args: Any) -> Birth:
        """Plans what an initialiser would create."""
        ...

    def view(self, state: Any) -> StateView:
        """Takes a state apart and plans it."""
        ...


class Checkpointer:
    """Saves and restores the state of a training step, on Orbax.

    Args:
      directory: where the steps lie, one folder each; created by the first save. What
        Orbax takes (`gs://...`, `s3://...`) is passed on as it is. In several
        processes it must be the same place for all.
      step: the training step, which knows where each leaf belongs.
      keep: how many steps to keep; older ones are deleted once a new one is complete.
        None keeps all.
      snapshot: "host" copies the state to host memory, then writes in the background;
        "blocking" writes before `save` returns, and on CPUs needs no such copy.
      compress: compress the arrays: trained float32 weights take 8 % less room and,
        where the store is fast, more than twice the time.
      timeout_seconds: how long to wait for other processes, and for one save.

    Raises:
      ConfigError: a setting is not valid.

    Example:
      >>> import tempfile, jax.numpy as jnp, jzero
      >>> step = jzero.shard_train_step(lambda w, x: (w - x.mean(), x.sum()))
      >>> with jzero.Checkpointer(tempfile.mkdtemp(), step) as ckpt:
      ...     w, start = ckpt.restore_or_init(lambda: jnp.zeros((8,)))
      ...     for i in range(start, 3):
      ...         w, _ = step(w, jnp.ones((16, 4)))
      ...     ckpt.save(i, w)
      ...     ckpt.restore_or_init(lambda: jnp.zeros((8,)))[1]
      3
    """

    def __init__(
        self,
        directory: epath.PathLike,
        step: Planner,
        *,
        keep: int | None = None,
        snapshot: Snapshot = "host",
        compress: bool = False,
        timeout_seconds: float = 1200,
    ) -> None:
        _check_settings(keep, snapshot, timeout_seconds)
        self._directory = _absolute(directory)
        self._step = step
        self._snapshot: Snapshot = snapshot
        self._compress = compress
        self._meeting = Meeting(str(self._directory), timeout_seconds)
        self._manager = make_manager(
            self._directory,
            keep=keep,
            snapshot=snapshot,
            compress=compress,
            timeout_seconds=timeout_seconds,
        )
        self._birth: Birth | None = None
        self._in_flight: tuple[int, int] | None = None
        self._is_ready = False

    @property
    def directory(self) -> epath.Path:
        """Where the steps lie."""
        return self._directory

    @property
    def latest_complete_step(self) -> int | None:
        """The newest step that was saved to its end and is all there, or None."""
        found = latest_complete(self._directory)
        return None if found is None else found.step

    @property
    def incomplete_steps(self) -> tuple[SavedStep, ...]:
        """Folders that look like steps and are none, each with its `problem`."""
        return tuple(s for s in scan_steps(self._directory) if not s.is_complete)

    def save(self, i: int, state: Any, data: Any = None) -> None:
        """Saves a state as step `i`; every process must call it.

        When it returns, the state may be given to the next step. A save that is still
        running is waited for first, and its error raised.

        Args:
          i: the number of the step that was done; higher than all before.
          state: one state, the tuple of the step's state arguments, or nnx objects.
          data: an iterator with `get_state` and `set_state`, as those of grain.

        Raises:
          CheckpointError: this save or the one before failed; a later step is there
            already; another process did not take part.
          DonationError: the state was given to a step before.
          StateError: the iterator cannot tell its position.
        """
        self.wait()
        view = self._step.view(state)
        position = None if data is None else encode_state(data)
        self._meeting.wait(f"save({i})")
        self._get_ready()
        self._check_number(i)
        leaves = describe_leaves(view)
        aliases = find_aliases(view.leaves, leaves)
        arrays = arrays_to_save(view, leaves, aliases, self._snapshot)
        manifest = make_manifest(i, view, leaves, aliases)
        is_primary = jax.process_index() == 0
        items: dict[str, Any] = {
            STATE_ITEM: save_arguments(arrays, compress=self._compress),
            MANIFEST_ITEM: RecordSave(manifest.to_json() if is_primary else None),
        }
        if not arrays:
            del items[STATE_ITEM]
        if data is not None:
            items[DATA_ITEM] = RecordSave(position)
        self._in_flight = (i, size_bytes(arrays))
        try:
            self._manager.save(i, args=ocp.args.Composite(**items), force=True)
        except Exception as error:
            self._fail(error)
        if self._snapshot == "blocking":
            self.wait()

    def restore_or_init(
        self, create_state: Callable[..., Any], *args: Any, data: Any = None
    ) -> tuple[Any, int]:
        """Restores the newest complete step, or creates a state if there is none.

        Args:
          create_state: as for `step.init`. It is traced for what the state looks
            like, and only run if there is nothing to restore.
          *args: its arguments.
          data: an iterator that is set to where it was when the step was saved.

        Returns:
          (state, the number of the next step to do): one more than the step that was
          restored, or 0.

        Raises:
          MismatchError: the checkpoint holds other leaves, shapes or dtypes.
          CheckpointError: it cannot be read.

        Warns:
          CheckpointWarning: there are steps that are not complete, which are left out.
        """
        self.wait()
        birth = self._step.birth(create_state, *args)
        self._birth = birth
        found = find_step(self._directory, None, self._meeting, "restore_or_init()")
        if found is None:
            return birth.make(), 0
        manifest = read_manifest(found.folder)
        wanted = describe_leaves(birth.view)
        report = compare(manifest, wanted)
        raise_mismatch(report, str(found.folder))
        read = restore_leaves(found, manifest, birth.view, report)
        self._meeting.wait("restore_or_init(): reading")
        restore_data(found, data)
        state = birth.view.assemble(fill_up(birth.view, read, None))
        return state, found.step + 1

    def restore(
        self,
        step: int | None = None,
        *,
        like: Any = None,
        what: What = "all",
        cast: bool = False,
        strict: bool = True,
        data: Any = None,
    ) -> Any:
        """Restores a step, or a part of it, to where the plan wants each leaf.

        Args:
          step: its number; None takes the newest complete one.
          like: a state that tells the structure and keeps the leaves that are not
            restored; nnx objects are changed in place. Or what `step.birth(create_fn,
            *args)` returns, which creates these leaves; None takes that of the last
            `restore_or_init`.
          what: "all"; "params"; "optimizer", with its counters; or a function that is
            asked about each leaf's path, such as "params/mlp/kernel".
          cast: allow other dtypes than those saved.
          strict: raise if any leaf does not fit; else restore the others.
          data: an iterator to set, as in `restore_or_init`.

        Returns:
          The state; with `strict=False`, (state, `RestoreReport`).

        Raises:
          MismatchError: the checkpoint holds other leaves, shapes or dtypes.
          CheckpointError: there is no such complete step, or it cannot be read.
        """
        self.wait()
        birth, view = self._structure_of(like)
        call = f"restore({'' if step is None else step})"
        found = find_step(self._directory, step, self._meeting, call)
        if found is None:
            raise CheckpointError(
                f"{self._directory} holds no complete step.\n"
                "Remedy: name the folder that a Checkpointer saved to."
            )
        manifest = read_manifest(found.folder)
        wanted = describe_leaves(view)
        report = compare(manifest, wanted, what=what, cast=cast)
        if strict:
            raise_mismatch(report, str(found.folder))
        read = restore_leaves(found, manifest, view, report)
        self._meeting.wait(f"{call}: reading")
        leaves = fill_up(view, read, birth)
        restore_data(found, data)
        state = view.assemble(leaves)
        return state if strict else (state, report)

    def wait(self) -> None:
        """Waits for a save in flight.

        Raises:
          CheckpointError: it failed.
        """
        try:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except Exception as error:
            self._fail(error)
        self._in_flight = None

    def close(self) -> None:
        """Waits for a save in flight and lets go of threads; call it at the end.

        Raises:
          CheckpointError: the last save failed.
        """
        try:
            self.wait()
        finally:
            self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except CheckpointError as second:
            error.add_note(f"Besides: {second}")

    def _get_ready(self) -> None:
        """Makes the folder and clears it of what broken saves left, once."""
        if self._is_ready:
            return
        if jax.process_index() == 0:
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                remove_unfinished(self._directory)
            except OSError as error:
                raise CheckpointError(
                    f"cannot write to {self._directory}: {error}.\n"
                    "Remedy: name a folder that can be written."
                ) from error
        self._meeting.wait("save: making the folder")
        self._is_ready = True

    def _check_number(self, i: int) -> None:
        latest = self._manager.latest_step()
        if latest is not None and latest >= i:
            raise CheckpointError(
                f"cannot save step {i}: {self._directory} holds step {latest}, which "
                "would still be taken for the newest.\n"
                f"Remedy: save to another folder, or delete the steps from {i} on."
            )

    def _structure_of(self, like: Any) -> tuple[Birth | None, StateView]:
        """Returns how to create a state, if it is not there yet, and its structure."""
        birth = like if isinstance(like, Birth) else None
        if like is None:
            birth = self._birth
        if birth is not None:
            return birth, birth.view
        if like is None:
            raise CheckpointError(
                "restore() does not know what the state looks like.\n"
                "Remedy: pass like=state, or like=step.birth(create_state, ...)."
            )
        return None, self._step.view(like)

    def _fail(self, error: Exception) -> NoReturn:
        """Raises what a save met, in terms of the save that met it."""
        if isinstance(error, JzeroError):
            raise error
        step, num_bytes = self._in_flight or (None, 0)
        self._in_flight = None
        failure = save_error(error, step, num_bytes, self._directory)
        if jax.process_index() == 0:
            # What was written of the step takes room that may just have run out.
            with contextlib.suppress(OSError):
                remove_unfinished(self._directory)
        # Orbax no longer counts the steps that this one was to replace.
        self._manager.reload()
        raise failure from error


def _check_settings(
    keep: int | None, snapshot: Snapshot, timeout_seconds: float
) -> None:
    wrong = []
    if keep is not None and (isinstance(keep, bool) or keep < 1):
        wrong.append(("keep", f"{keep!r} is no number of steps from 1 on, nor None"))
    if snapshot not in get_args(Snapshot):
        wrong.append(("snapshot", f'{snapshot!r} is neither "host" nor "blocking"'))
    if timeout_seconds <= 0:
        wrong.append(("timeout_seconds", f"{timeout_seconds!r} is not above 0"))
    if wrong:
        raise ConfigError(
            format_problem("settings of Checkpointer are not valid:", wrong)
        )


def _absolute(directory: epath.PathLike) -> epath.Path:
    """Makes a local path absolute, as the store wants it; others stay as they are."""
    path = epath.Path(directory)
    return path if "://" in str(directory) else path.expanduser().resolve()
