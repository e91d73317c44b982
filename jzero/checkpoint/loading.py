"""Loading what `consolidate` wrote.

Lives here: `load_consolidated`, which maps the files and copies nothing that is not
used. May import: `tensor_file.py`, `shards.py`, `storable.py`. Read next:
`consolidating.py`, which writes them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from jzero.checkpoint.manifest import join_path
from jzero.checkpoint.shards import INDEX_NAME
from jzero.checkpoint.storable import decode, dtype_of
from jzero.checkpoint.tensor_file import map_tensors, read_header
from jzero.errors import CheckpointError, MismatchError, format_problem
from jzero.plan.leaves import LeafFacts, describe_tree, is_key_dtype

__all__ = ["load_consolidated"]

_T = TypeVar("_T")


@overload
def load_consolidated(folder: str | os.PathLike[str]) -> dict[str, np.ndarray]: ...


@overload
def load_consolidated(
    folder: str | os.PathLike[str],
    template: _T,
    *,
    cast: bool = False,
    strict: bool = True,
) -> _T: ...


def load_consolidated(
    folder: str | os.PathLike[str],
    template: Any = None,
    *,
    cast: bool = False,
    strict: bool = True,
) -> Any:
    """Loads consolidated tensors, as a flat dict or into a tree.

    Args:
        folder: What `consolidate` wrote, or one safetensors file.
        template: A tree of arrays or `jax.ShapeDtypeStruct`s. Each leaf comes back
            where the template's leaf lies, shard by shard, and as numpy array where
            that is one. Leaves without a sharding go to the default device.
        cast: Whether another dtype in the template may be cast to.
        strict: Whether tensors that the template lacks are an error.

    Returns:
        Without a template, arrays by name: read-only, for they are views of the
        files, which are read where they are touched. Random keys are their bits, and
        a tied leaf has each of its names. With a template, a tree like it.

    Raises:
        CheckpointError: There are no such files, or one is cut short.
        MismatchError: The template has leaves, shapes or dtypes that the files lack.
    """
    files = _open(Path(folder))
    if template is None:
        return files.tensors
    leaves, treedef = jax.tree.flatten(template)
    facts = describe_tree(template, arg=0, name="")
    names = _names(facts, files.separator)
    _check(names, facts, files, cast=cast, strict=strict)
    loaded = [
        _place(leaf, fact, files.tensors[name], files.key_impls.get(name))
        for leaf, fact, name in zip(leaves, facts, names, strict=True)
    ]
    return jax.tree.unflatten(treedef, loaded)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """What lies in a folder.

    Attributes:
        folder: The folder.
        tensors: Arrays by name, those of aliases included.
        separator: What joins the keys of a path to a name.
        key_impls: Name -> implementation, of random keys.
    """

    folder: Path
    tensors: dict[str, np.ndarray]
    separator: str
    key_impls: Mapping[str, str]


def _open(folder: Path) -> _Files:
    paths = _tensor_files(folder)
    tensors: dict[str, np.ndarray] = {}
    about: dict[str, Any] = {}
    for path in paths:
        tensors.update(map_tensors(path))
        metadata = read_header(path)[0].get("__metadata__", {})
        about = json.loads(metadata.get("jzero", "{}"))
    for name, dtype in about.get("dtypes", {}).items():
        tensors[name] = decode(tensors[name], dtype_of(dtype))
    for name, same in about.get("aliases", {}).items():
        tensors[name] = tensors[same]
    return _Files(
        folder=folder,
        tensors=tensors,
        separator=about.get("separator", "/"),
        key_impls=about.get("key_impls", {}),
    )


def _tensor_files(folder: Path) -> list[Path]:
    """Lists the files of tensors that belong together."""
    if folder.is_file():
        return [folder]
    index = folder / INDEX_NAME
    if not index.exists():
        raise CheckpointError(
            f"{folder} holds no {INDEX_NAME}.\n"
            "Remedy: name a folder that consolidate wrote, or one safetensors file."
        )
    try:
        names = dict.fromkeys(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{index} cannot be read: {error!r}") from error
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise CheckpointError(
            format_problem(f"{folder} lacks files that its index names:", missing)
        )
    return [folder / name for name in names]


def _names(facts: tuple[LeafFacts, ...], separator: str) -> list[str]:
    """Names the leaves of a tree as they are named in the files."""
    seen: dict[str, int] = {}
    names: list[str] = []
    for fact in facts:
        path = join_path(fact.keys) if separator == "/" else separator.join(fact.keys)
        path = path or "value"
        seen[path] = seen.get(path, 0) + 1
        # Keys that read alike are told apart as checkpoints do it.
        names.append(path if seen[path] == 1 else f"{path}~{seen[path]}")
    return names


def _check(
    names: list[str],
    facts: tuple[LeafFacts, ...],
    files: _Files,
    *,
    cast: bool,
    strict: bool,
) -> None:
    """Raises one error with every leaf that does not fit."""
    wrong: list[tuple[str, str]] = []
    for name, fact in zip(names, facts, strict=True):
        tensor = files.tensors.get(name)
        if tensor is None:
            wrong.append((name, "is not in the files"))
            continue
        impl = files.key_impls.get(name)
        if _is_retyped(tensor, fact, impl, cast=cast):
            dtype = tensor.dtype if impl is None else f"key<{impl}>"
            wrong.append((name, f"has another dtype: {dtype} -> {fact.dtype}"))
        elif tensor.shape != (_bits_shape(fact) if tensor.size else fact.shape):
            wrong.append((name, f"has another shape: {tensor.shape} -> {fact.shape}"))
    if strict:
        extra = files.tensors.keys() - set(names)
        wrong += [(name, "is not in the template") for name in sorted(extra)]
    if wrong:
        raise MismatchError(
            format_problem(
                f"{files.folder} does not hold the template; of its leaves, "
                f"{len(wrong)} do not fit:",
                wrong,
                "give the template of what was consolidated; cast=True casts dtypes, "
                "strict=False leaves out what the template lacks.",
            )
        )


def _is_retyped(
    tensor: np.ndarray, fact: LeafFacts, impl: str | None, *, cast: bool
) -> bool:
    """Says whether a leaf wants another dtype than it may have."""
    if impl is not None:
        return jax.eval_shape(lambda: jax.random.key(0, impl=impl)).dtype != fact.dtype
    return is_key_dtype(fact.dtype) or (not cast and tensor.dtype != fact.dtype)


def _bits_shape(fact: LeafFacts) -> tuple[int, ...]:
    """Returns the shape of a leaf in the files, with one more dim for random keys."""
    if not is_key_dtype(fact.dtype):
        return fact.shape
    keys = jax.ShapeDtypeStruct(fact.shape, fact.dtype)
    return jax.eval_shape(jax.random.key_data, keys).shape


def _place(like: Any, fact: LeafFacts, values: np.ndarray, impl: str | None) -> Any:
    """Makes an array of values where another one lies."""
    sharding = getattr(like, "sharding", None)
    if impl is not None:
        bits = jnp.asarray(values.reshape(_bits_shape(fact)))
        return jax.device_put(jax.random.wrap_key_data(bits, impl=impl), sharding)
    if isinstance(like, np.ndarray | np.generic):
        return np.array(values, like.dtype)
    if sharding is None:
        return jax.device_put(np.array(values, fact.dtype))
    return jax.make_array_from_callback(
        fact.shape, sharding, lambda index: np.array(values[index], fact.dtype)
    )
