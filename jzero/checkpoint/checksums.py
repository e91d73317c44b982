"""Size and checksum of every file of a saved step.

The store finds a file that is missing, but not every byte that has changed: array
data carries no checksum of its own. Lives here: computing, writing and checking
them. May import: `manifest.py`. Read next: `steps.py`, which looks at sizes only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import xxhash
from etils import epath

from jzero.checkpoint.manifest import MANIFEST_ITEM
from jzero.errors import CheckpointError

__all__ = [
    "CHECKSUM_FILE",
    "FileProblem",
    "FileSum",
    "check_files",
    "checksum_path",
    "read_checksums",
    "sum_files",
    "write_checksums",
]

CHECKSUM_FILE = "checksums.json"
ALGORITHM = "xxh3_64"

# Small enough for a block to be hashed while it is still in the cache of the core.
_BLOCK_BYTES = 256 * 2**10
_NUM_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSum:
    """Size and checksum of one file.

    Attributes:
        size_bytes: Its length.
        digest: Its XXH3 hash of 64 bits, as hexadecimal digits.
    """

    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """A file of a step that is not as it was written.

    Attributes:
        name: Its path relative to the step's folder.
        what: What is wrong with it.
    """

    name: str
    what: str


def checksum_path(step_folder: epath.PathLike) -> epath.Path:
    """Returns where the checksums of a step lie."""
    return epath.Path(step_folder) / MANIFEST_ITEM / CHECKSUM_FILE


def sum_files(files: Mapping[str, epath.Path]) -> dict[str, FileSum]:
    """Reads files, given by relative name, and sums them."""
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        return dict(zip(files, pool.map(_sum_file, files.values()), strict=True))


def write_checksums(
    item_folder: epath.PathLike, files: Mapping[str, epath.Path]
) -> None:
    """Writes the checksums of files into the folder of the item `jzero`.

    Args:
        item_folder: That folder, which may still have a temporary name.
        files: Path of each file by its name relative to the step's folder.
    """
    record = {
        "algorithm": ALGORITHM,
        "files": {
            name: {"bytes": s.size_bytes, ALGORITHM: s.digest}
            for name, s in sum_files(files).items()
        },
    }
    (epath.Path(item_folder) / CHECKSUM_FILE).write_text(json.dumps(record, indent=1))


def read_checksums(step_folder: epath.PathLike) -> dict[str, FileSum] | None:
    """Reads the checksums of a step; None if it has none.

    Raises:
        CheckpointError: They are there and cannot be read.
    """
    path = checksum_path(step_folder)
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    try:
        record = json.loads(text)
        if record["algorithm"] != ALGORITHM:
            raise ValueError(f"algorithm {record['algorithm']!r}")
        files = record["files"]
        return {
            name: FileSum(size_bytes=int(entry["bytes"]), digest=str(entry[ALGORITHM]))
            for name, entry in files.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} holds no checksums: {error!r}") from error


def check_files(
    step_folder: epath.PathLike, sums: Mapping[str, FileSum], *, sizes_only: bool
) -> list[FileProblem]:
    """Compares the files of a step with what was written.

    Args:
        step_folder: `<directory>/<step>`.
        sums: What `read_checksums` returned.
        sizes_only: Look at lengths alone, which reads no data.

    Returns:
        One record per file that is missing, of another length, or changed.
    """
    folder = epath.Path(step_folder)
    problems: list[FileProblem] = []
    whole: dict[str, epath.Path] = {}
    for name, expected in sums.items():
        path = folder / name
        try:
            size_bytes = path.stat().length
        except OSError:
            problems.append(FileProblem(name=name, what="is missing"))
            continue
        if size_bytes != expected.size_bytes:
            what = f"has {size_bytes} bytes instead of {expected.size_bytes}"
            problems.append(FileProblem(name=name, what=what))
        else:
            whole[name] = path
    if sizes_only:
        return problems
    for name, found in sum_files(whole).items():
        if found.digest != sums[name].digest:
            what = f"has {ALGORITHM} {found.digest} instead of {sums[name].digest}"
            problems.append(FileProblem(name=name, what=what))
    return sorted(problems, key=lambda problem: problem.name)


def files_below(
    folder: epath.Path, prefix: str = ""
) -> Iterator[tuple[str, epath.Path]]:
    """Lists the files of a folder and its folders, by relative name, in order."""
    for path in sorted(folder.iterdir(), key=lambda p: p.name):
        if path.is_dir():
            yield from files_below(path, f"{prefix}{path.name}/")
        else:
            yield prefix + path.name, path


def _sum_file(path: epath.Path) -> FileSum:
    running, size_bytes = xxhash.xxh3_64(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            running.update(block)
            size_bytes += len(block)
    return FileSum(size_bytes=size_bytes, digest=running.hexdigest())
