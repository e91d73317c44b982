"""A folder that is there whole or not at all.

Lives here: writing beside the final place, checking what is in the way, and the one
rename at the end. May import: `jzero.errors`. Read next: `consolidating.py`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jzero.errors import CheckpointError, format_problem

__all__ = ["new_folder", "telling_of_full_disks", "write_file"]


@contextmanager
def new_folder(
    target: Path,
    *,
    needed_bytes: int,
    overwrite: bool,
    is_ours: Callable[[str], bool],
) -> Iterator[Path]:
    """Gives a folder to write into, which gets its name once the block has ended.

    An error within the block leaves nothing behind. What a killed process left is
    removed by the next one with the same target.

    Args:
        target: What the folder is to be called.
        needed_bytes: What will be written.
        overwrite: Whether a folder of that name may be replaced.
        is_ours: Says of a name whether it may be in a folder that is replaced.

    Yields:
        The folder to write into, beside the target.

    Raises:
        CheckpointError: Something is in the way.
        CheckpointError: The disk cannot take `needed_bytes`.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "out"
        >>> with new_folder(
        ...     target, needed_bytes=2, overwrite=False, is_ours=lambda name: True
        ... ) as folder:
        ...     write_file(folder / "a.txt", b"hi")
        ...     target.exists()
        False
        >>> (target / "a.txt").read_text()
        'hi'
    """
    target = target.absolute()
    _check_target(target, overwrite=overwrite, is_ours=is_ours)
    target.parent.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(target.parent).free
    if needed_bytes > free_bytes:
        raise CheckpointError(
            f"{target} needs {needed_bytes} bytes, but its disk has {free_bytes} free"
        )
    partial = target.with_name(f"{target.name}.partial")
    with _own_folder(partial, is_ours):
        try:
            yield partial
            _sync(partial)
            _give_name(partial, target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def write_file(path: Path, content: bytes) -> None:
    """Writes a whole file and waits until it is on the disk.

    Raises:
        CheckpointError: The disk does not take it.
    """
    with telling_of_full_disks(path, len(content)), path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def telling_of_full_disks(path: Path, size_bytes: int) -> Iterator[None]:
    """Turns an operating system's error of writing into one with path and bytes.

    Args:
        path: The file that is written.
        size_bytes: Its size when it is whole.

    Raises:
        CheckpointError: An `OSError` came up in the block.
    """
    try:
        yield
    except OSError as error:
        try:
            free_bytes = shutil.disk_usage(path.parent).free
            left = f"; its disk has {free_bytes} bytes free"
        except OSError:
            left = ""
        raise CheckpointError(
            f"{path} ({size_bytes} bytes) could not be written: "
            f"{error.strerror or error}{left}"
        ) from error


def _check_target(
    target: Path, *, overwrite: bool, is_ours: Callable[[str], bool]
) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise CheckpointError(f"{target} is a file; name a folder")
    names = sorted(entry.name for entry in target.iterdir())
    if not names:
        return
    if not overwrite:
        raise CheckpointError(
            format_problem(
                f"{target} is there already:",
                names,
                "name another folder, or pass overwrite=True (--overwrite).",
                max_rows=5,
            )
        )
    foreign = [name for name in names if not is_ours(name)]
    if foreign:
        raise CheckpointError(
            format_problem(
                f"{target} holds what was not written by consolidating, so it is not "
                "replaced:",
                foreign,
                "name another folder, or move these away.",
                max_rows=5,
            )
        )


@contextmanager
def _own_folder(partial: Path, is_ours: Callable[[str], bool]) -> Iterator[None]:
    """Makes an empty folder that no other process writes into meanwhile."""
    partial.mkdir(exist_ok=True)
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The other process may have given it its name since it was opened.
            is_free = os.path.samestat(os.fstat(descriptor), partial.stat())
        except OSError:
            is_free = False
        if not is_free:
            raise CheckpointError(f"another process is writing {partial} right now")
        # A killed process leaves its files; the lock on them is gone.
        left = sorted(partial.iterdir())
        if not all(is_ours(path.name) and path.is_file() for path in left):
            raise CheckpointError(f"{partial} is in the way, and not ours to remove")
        for path in left:
            path.unlink()
        yield
    finally:
        os.close(descriptor)


def _give_name(partial: Path, target: Path) -> None:
    """Puts the new folder into its place, which an old one may hold."""
    if not target.exists() or not any(target.iterdir()):
        partial.rename(target)
    else:
        # Killed between the two, both are whole and lie beside the target.
        old = Path(tempfile.mkdtemp(prefix=f"{target.name}.old-", dir=target.parent))
        target.rename(old / target.name)
        partial.rename(target)
        shutil.rmtree(old)
    _sync(target.parent)


def _sync(folder: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
