"""A saved step as files that `safetensors` alone can load.

Lives here: `consolidate`, which streams every leaf from the store into its place in a
file. Memory holds a few pieces of arrays at a time, never a whole one that lies in
several chunks; no device is touched and no model code is needed. May import: the
modules of this folder. Read next: `loading.py`, which loads the result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import safe_open

from jzero.checkpoint.export import Entry, Export, plan_export
from jzero.checkpoint.folder import new_folder, telling_of_full_disks, write_file
from jzero.checkpoint.leaves import open_leaves
from jzero.checkpoint.shards import (
    INDEX_NAME,
    Shard,
    about_text,
    index_text,
    is_output_name,
    split_shards,
)
from jzero.checkpoint.slabs import runs
from jzero.checkpoint.source import Source, find_source
from jzero.checkpoint.storable import encode
from jzero.checkpoint.store import Piece, pieces_of, read_ahead
from jzero.checkpoint.tensor_file import file_header, lay_out
from jzero.checkpoint.verifying import check_step
from jzero.config import parse_bytes
from jzero.errors import CheckpointError, format_problem

__all__ = ["Consolidated", "consolidate"]

# What is read at once, and what waits while another piece is written.
_PIECE_BYTES = 4_000_000
_AHEAD_BYTES = 16_000_000

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consolidated:
    """What `consolidate` wrote.

    Attributes:
        folder: Where.
        files: The names of the tensor files.
        step: The step; None for arrays that were saved without one.
        num_tensors: How many tensors the files hold.
        size_bytes: Their bytes.
        aliases: Name of a leaf that is the same array as another -> that one's name.
    """

    folder: Path
    files: tuple[str, ...]
    step: int | None
    num_tensors: int
    size_bytes: int
    aliases: dict[str, str]


def consolidate(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    what: str = "params",
    only: Sequence[str] = (),
    dtype: str = "same",
    separator: Literal["/", "."] = "/",
    max_shard_bytes: int | str = "5GB",
    overwrite: bool = False,
    check: bool = True,
    progress: Progress | None = None,
) -> Consolidated:
    """Writes a saved step as safetensors files with an index.

    The folder appears under its name once everything is on the disk; until then, and
    after an error, there is none.

    Args:
        source: `runs/a` for its newest complete step, `runs/a@100`, or the folder of
            a step; local or remote. Steps that Orbax wrote without jzero do as well.
        out: The folder to write, on a local disk.
        what: "params", "optimizer", "other", several of them with commas, or "all".
        only: Patterns of paths such as "params/decoder/*"; if any, leaves that match
            none are left out.
        dtype: "float32", "bfloat16" or "float16" rounds floating leaves to it, and
            leaves integers, flags and random keys alone; "same" keeps every bit.
        separator: What joins the keys of a path to a name, "/" or ".".
        max_shard_bytes: The most bytes of tensors in one file; a number or "5GB".
        overwrite: Replace a folder that an earlier call wrote.
        check: First compare the step's files with their checksums, if jzero wrote it.
        progress: Called with the bytes done, the bytes in all, and what is done.

    Returns:
        What was written.

    Raises:
        CheckpointError: The step is not there or not whole, something is in the way,
            the disk is full, or numbers do not fit into `dtype`.
        ConfigError: A setting is out of range.
    """
    target = Path(out)
    most_bytes = parse_bytes(max_shard_bytes, "max_shard_bytes")
    found = find_source(source)
    check = check and found.manifest is not None
    try:
        stored = open_leaves(found)
    except CheckpointError:
        # The checksums know which file is to blame.
        if check:
            _check(found, progress)
        raise
    export = plan_export(stored, what=what, only=only, dtype=dtype, separator=separator)
    shards = split_shards((e.tensor for e in export.entries), max_bytes=most_bytes)
    about = _about(found, export, what=what, dtype=dtype, separator=separator)
    headers = {
        shard.name: file_header(shard.tensors, about_text(about)) for shard in shards
    }
    size_bytes = sum(entry.tensor.size_bytes for entry in export.entries)
    # The index repeats names and little else.
    needed_bytes = size_bytes + 2 * sum(map(len, headers.values()))
    with new_folder(
        target,
        needed_bytes=needed_bytes,
        overwrite=overwrite,
        is_ours=is_output_name,
    ) as folder:
        if check:
            _check(found, progress)
        _write(export, shards, headers, folder, progress)
        write_file(folder / INDEX_NAME, index_text(shards, about).encode())
    return Consolidated(
        folder=target,
        files=tuple(shard.name for shard in shards),
        step=found.step,
        num_tensors=len(export.entries),
        size_bytes=size_bytes,
        aliases=export.aliases,
    )


def _about(
    source: Source, export: Export, *, what: str, dtype: str, separator: str
) -> dict[str, Any]:
    """Collects what the files say about themselves."""
    about: dict[str, Any] = {
        "step": source.step,
        "what": what,
        "dtype": dtype,
        "separator": separator,
        "aliases": export.aliases,
        "dtypes": export.dtypes,
        "key_impls": export.key_impls,
    }
    manifest = source.manifest
    if manifest is not None:
        about["saved_utc"] = manifest.time_utc
        about["versions"] = dict(manifest.versions)
        about["plan"] = {
            "stage": manifest.stage,
            "mesh": dict(manifest.mesh_axes),
            "num_devices": manifest.num_devices,
            "num_processes": manifest.num_processes,
        }
    return about


def _check(source: Source, progress: Progress | None) -> None:
    checked = check_step(source.folder, progress=progress)
    if checked.problems:
        raise CheckpointError(
            format_problem(
                f"{source.name} is damaged:",
                [(problem.name, problem.what) for problem in checked.problems],
                "take another step; check=False (--no-check) reads it all the same.",
            )
        )


def _write(
    export: Export,
    shards: Sequence[Shard],
    headers: dict[str, bytes],
    folder: Path,
    progress: Progress | None,
) -> None:
    """Streams all leaves into the files, one file at a time."""
    entries = {entry.tensor.name: entry for entry in export.entries}
    total_bytes = sum(entry.leaf.size_bytes for entry in export.entries)
    pieces = read_ahead(_pieces(shards, entries), max_bytes=_AHEAD_BYTES)
    done_bytes = 0
    lost: dict[str, int] = {}
    next_piece = next(pieces, None)
    for shard in shards:
        path = folder / shard.name
        header = headers[shard.name]
        offsets = lay_out(shard.tensors)
        file_bytes = len(header) + sum(tensor.size_bytes for tensor in shard.tensors)
        with ExitStack() as stack:
            stack.enter_context(telling_of_full_disks(path, file_bytes))
            file = stack.enter_context(path.open("wb"))
            file.write(header)
            file.truncate(file_bytes)
            file.flush()
            while next_piece is not None and next_piece[0].tag[0] == shard.name:
                piece, (values,) = next_piece
                entry = piece.tag[1]
                start = len(header) + offsets[entry.tensor.name]
                num_lost = _put(file.fileno(), start, entry, piece, values)
                if num_lost:
                    name = entry.tensor.name
                    lost[name] = lost.get(name, 0) + num_lost
                done_bytes += values.nbytes
                if progress is not None:
                    progress(done_bytes, total_bytes, shard.name)
                next_piece = next(pieces, None)
            os.fsync(file.fileno())
        # Whoever reads the file uses this library, so it must find no fault.
        with safe_open(path, framework="np") as reader:
            reader.keys()
    if lost:
        dtype = next(e.cast.name for e in export.entries if e.cast is not None)
        raise CheckpointError(_overflow(lost, dtype))


def _pieces(shards: Sequence[Shard], entries: dict[str, Entry]) -> Iterator[Piece]:
    for shard in shards:
        for name in lay_out(shard.tensors):
            entry = entries[name]
            if entry.leaf.array is not None:
                yield from pieces_of(
                    (entry.leaf.array,),
                    tag=(shard.name, entry),
                    max_bytes=_PIECE_BYTES,
                )


def _put(
    descriptor: int, start: int, entry: Entry, piece: Piece, values: np.ndarray
) -> int:
    """Writes one piece where it belongs; counts numbers that became infinite."""
    run_elems, firsts = runs(piece.slab, piece.arrays[0].shape)
    num_lost = 0
    if entry.cast is not None:
        finite = values
        with np.errstate(over="ignore"):
            values = values.astype(entry.cast)
        infinite = np.isinf(values)
        if infinite.any():
            num_lost = int(np.isfinite(finite[infinite]).sum())
    else:
        values = encode(values, entry.tensor.dtype)
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    itemsize = data.nbytes // piece.slab.size_elems
    for number, first in enumerate(firsts):
        run = data[number * run_elems * itemsize : (number + 1) * run_elems * itemsize]
        _write_all(descriptor, memoryview(run), start + first * itemsize)
    return num_lost


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    """Writes bytes at a place; the system may take fewer at a time than it is given."""
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _overflow(lost: dict[str, int], dtype: str) -> str:
    return format_problem(
        f"finite numbers would become infinite as {dtype}:",
        [(name, f"{count} numbers") for name, count in lost.items()],
        "dtype='same' (--dtype same) keeps every bit; bfloat16 reaches as far as "
        "float32.",
    )
