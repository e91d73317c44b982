"""What Orbax does not know how to save: our records, and positions of data.

Both are small JSON files, committed with the step or not at all. The checksums are
taken in `finalize`, which Orbax calls on one process when every file of the step is
written and before the step gets its name; items are finalized in the order in which
they are registered, so ours is registered last. Lives here: two Orbax handlers and
the registry. May import: Orbax. Read next: `saving.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint.future import CommitFutureAwaitingContractedSignals, Future

from jzero.checkpoint.checksums import files_below, write_checksums
from jzero.checkpoint.manifest import (
    DATA_ITEM,
    MANIFEST_FILE,
    MANIFEST_ITEM,
    STATE_ITEM,
)

__all__ = ["RecordHandler", "RecordSave", "data_file", "make_registry", "read_records"]


class RecordHandler(ocp.AsyncCheckpointHandler):
    """Writes one JSON text of this process, or of the first process alone.

    Attributes:
        name: Makes the file's name of the numbers of this and of all processes.
        is_last: Whether the checksums of the whole step are taken here.
    """

    def __init__(self, name: Callable[[int, int], str], *, is_last: bool) -> None:
        self.name = name
        self.is_last = is_last

    async def async_save(
        self, directory: epath.Path, args: RecordSave
    ) -> list[Future] | None:
        """Writes the text in the background, once Orbax has made the folder."""
        text = args.text
        if text is None:
            return None

        async def write() -> None:
            (directory / self._own_name()).write_text(text)

        return [CommitFutureAwaitingContractedSignals(write(), name="jzero_record")]

    def save(self, directory: epath.Path, args: RecordSave) -> None:
        """Writes the text at once."""
        if args.text is not None:
            (directory / self._own_name()).write_text(args.text)

    def _own_name(self) -> str:
        return self.name(jax.process_index(), jax.process_count())

    def restore(self, directory: epath.Path, args: Any = None) -> dict[str, str]:
        """Returns the texts in the folder by file name."""
        return read_records(directory)

    def finalize(self, directory: epath.Path) -> None:
        """Sums every file of the step, while the step still has a temporary name."""
        if not self.is_last:
            return
        step = directory.parent
        files = dict(files_below(directory, f"{MANIFEST_ITEM}/"))
        for item in (STATE_ITEM, DATA_ITEM):
            if (step / item).exists():
                files |= files_below(step / item, f"{item}/")
        write_checksums(directory, files)


@ocp.args.register_with_handler(RecordHandler, for_save=True)
@dataclass
class RecordSave(ocp.args.CheckpointArgs):
    """What `RecordHandler` writes.

    Attributes:
        text: The text of this process; None writes none.
    """

    text: str | None


@ocp.args.register_with_handler(RecordHandler, for_restore=True)
@dataclass
class RecordRestore(ocp.args.CheckpointArgs):
    """`RecordHandler` needs to know nothing to read."""


def read_records(folder: epath.Path) -> dict[str, str]:
    """Returns the texts that `RecordHandler`s of all processes wrote, by file name."""
    return {path.name: path.read_text() for path in folder.glob("*.json")}


def data_file(process: int, num_processes: int) -> str:
    """Returns the name of a process's file in the item `data`."""
    return f"process_{process}-of-{num_processes}.json"


def make_registry(
    arrays: ocp.PyTreeCheckpointHandler,
) -> ocp.handlers.CheckpointHandlerRegistry:
    """Says which handler takes which item of a step."""
    registry = ocp.DefaultCheckpointHandlerRegistry()
    registry.add(STATE_ITEM, ocp.args.PyTreeSave, arrays)
    registry.add(STATE_ITEM, ocp.args.PyTreeRestore, arrays)
    data = RecordHandler(data_file, is_last=False)
    registry.add(DATA_ITEM, RecordSave, data)
    registry.add(DATA_ITEM, RecordRestore, data)
    # Last: its checksums are of all the others' files.
    manifest = RecordHandler(lambda process, num: MANIFEST_FILE, is_last=True)
    registry.add(MANIFEST_ITEM, RecordSave, manifest)
    registry.add(MANIFEST_ITEM, RecordRestore, manifest)
    return registry
