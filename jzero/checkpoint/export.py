"""What a consolidated checkpoint holds: which leaves, under which names and dtypes.

Lives here: decisions only, nothing is read or written. May import: `leaves.py`,
`tensor_file.py`. Read next: `consolidating.py`, which carries them out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from jzero.checkpoint.leaves import Leaf, StoredLeaves
from jzero.checkpoint.storable import dtype_of, storable
from jzero.checkpoint.tensor_file import Tensor
from jzero.errors import CheckpointError, ConfigError, format_problem

__all__ = ["DTYPES", "WHAT", "Entry", "Export", "plan_export"]

# What a person may ask for, and the role that the manifest gives to such leaves.
WHAT = {"params": "parameter", "optimizer": "optimizer", "other": "other"}
DTYPES = ("same", "float32", "bfloat16", "float16")
_BARE = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One leaf and the tensor that it becomes.

    Attributes:
        leaf: The leaf.
        tensor: Name, dtype and shape in the file.
        cast: The dtype to round to; None if every bit is kept.
    """

    leaf: Leaf
    tensor: Tensor
    cast: np.dtype[Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Everything that goes into a consolidated checkpoint.

    Attributes:
        entries: The tensors.
        aliases: Name of a leaf that is the same array as another -> that one's name.
        dtypes: Name of a tensor whose dtype the format lacks -> the dtype it stands
            for, e.g. "int4" or "key<fry>".
        key_impls: Name of a tensor of random keys -> their implementation.
    """

    entries: tuple[Entry, ...]
    aliases: dict[str, str]
    dtypes: dict[str, str]
    key_impls: dict[str, str]


def plan_export(
    stored: StoredLeaves,
    *,
    what: str,
    only: Sequence[str],
    dtype: str,
    separator: Literal["/", "."],
) -> Export:
    """Decides what is written.

    Args:
        stored: The leaves of a step.
        what: "params", "optimizer", "other", several of them with commas, or "all".
        only: Patterns such as `params/decoder/*`; a leaf must match one, if any.
        dtype: One of `DTYPES`; other than "same", floating leaves are rounded to it.
        separator: What joins the keys of a path to a name.

    Returns:
        The plan.

    Raises:
        ConfigError: A setting is none of those.
        CheckpointError: Nothing is left, roles are not known, or names collide.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r}: not among {', '.join(DTYPES)}")
    if separator not in ("/", "."):
        raise ConfigError(f"separator {separator!r}: neither '/' nor '.'")
    chosen = _choose(stored, roles=_roles(what), only=only)
    if not chosen:
        raise CheckpointError(_nothing(stored, what, only))
    names = {path: _name(leaf, separator) for path, (leaf, _) in chosen.items()}
    _check_names(names)
    cast = None if dtype == "same" else dtype_of(dtype)
    # A leaf is written under the first of its paths; the others are its aliases.
    first: dict[str, str] = {}
    aliases: dict[str, str] = {}
    entries: list[Entry] = []
    for path, (leaf, stored_path) in chosen.items():
        if stored_path in first:
            aliases[names[path]] = first[stored_path]
            continue
        first[stored_path] = names[path]
        entries.append(_entry(leaf, names[path], cast))
    return Export(
        entries=tuple(entries),
        aliases=aliases,
        dtypes={
            entry.tensor.name: entry.leaf.dtype
            for entry in entries
            if entry.cast is None and entry.leaf.dtype != entry.tensor.dtype.name
        },
        key_impls={
            entry.tensor.name: entry.leaf.key_impl
            for entry in entries
            if entry.leaf.key_impl is not None
        },
    )


def _roles(what: str) -> frozenset[str] | None:
    """Reads which roles are wanted; None for all leaves, whatever their role."""
    words = [word.strip() for word in what.split(",")]
    if "all" in words:
        return None
    unknown = [word for word in words if word not in WHAT]
    if unknown:
        raise ConfigError(
            f"what={what!r}: {', '.join(map(repr, unknown))} is not among "
            f"{', '.join(WHAT)}, all"
        )
    return frozenset(WHAT[word] for word in words)


def _choose(
    stored: StoredLeaves, *, roles: frozenset[str] | None, only: Sequence[str]
) -> dict[str, tuple[Leaf, str]]:
    """Returns the wanted leaves by path, each with the path it is stored under."""
    if roles is not None and any(leaf.role is None for leaf in stored.leaves.values()):
        raise CheckpointError(
            f"{stored.source.name} was saved by Orbax without jzero, so nobody wrote "
            "down which of its leaves are parameters.\n"
            "Remedy: take all (what='all', --what all), and choose by path if need "
            "be (only=('params/*',), --only 'params/*')."
        )
    manifest = stored.source.manifest
    saved = {} if manifest is None else {leaf.path: leaf for leaf in manifest.leaves}
    chosen: dict[str, tuple[Leaf, str]] = {}
    for path in saved or stored.leaves:
        at = stored.aliases.get(path, path)
        leaf = stored.leaves[at]
        role = saved[path].role if path in saved else leaf.role
        if roles is not None and role not in roles:
            continue
        if only and not any(fnmatchcase(path, pattern) for pattern in only):
            continue
        if path != at:
            keys = saved[path].keys
            leaf = Leaf(
                path=path,
                keys=keys,
                shape=leaf.shape,
                dtype=leaf.dtype,
                role=role,
                array=leaf.array,
                key_impl=leaf.key_impl,
            )
        chosen[path] = (leaf, at)
    return chosen


def _name(leaf: Leaf, separator: str) -> str:
    name = leaf.path if separator == "/" else separator.join(leaf.keys)
    return name or _BARE


def _check_names(names: dict[str, str]) -> None:
    paths = defaultdict(list)
    for path, name in names.items():
        paths[name].append(path)
    twice = [(name, ", ".join(group)) for name, group in paths.items() if group[1:]]
    if twice:
        raise CheckpointError(
            format_problem(
                "several leaves would get one name:",
                twice,
                "join names by '/' (separator='/', --separator /), which are unique.",
            )
        )


def _nothing(stored: StoredLeaves, what: str, only: Sequence[str]) -> str:
    """Says what there is, where nothing was wanted of it."""
    counts: dict[str, int] = defaultdict(int)
    for leaf in stored.leaves.values():
        counts[leaf.role or "unknown"] += 1
    patterns = f" and only={list(only)}" if only else ""
    return format_problem(
        f"{stored.source.name} has no leaf for what={what!r}{patterns}. It has:",
        [(role, f"{count} leaves") for role, count in sorted(counts.items())],
        "see the paths with jzero ckpt ls --leaves.",
    )


def _entry(leaf: Leaf, name: str, cast: np.dtype[Any] | None) -> Entry:
    if leaf.array is None:
        dtype, shape = dtype_of(leaf.dtype), leaf.shape
    else:
        dtype, shape = leaf.array.dtype, leaf.array.shape
    # Random keys are integers here, so they are left alone, too.
    rounded = cast if jnp.issubdtype(dtype, np.floating) else None
    if rounded is None:
        dtype, shape = storable(dtype, shape)
    tensor = Tensor(name=name, dtype=rounded or dtype, shape=shape)
    return Entry(leaf=leaf, tensor=tensor, cast=rounded)
