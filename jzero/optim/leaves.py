"""How each leaf of an optimizer's state is stored.

Lives here: which moments become 8-bit codes, which leaves decay, and what is wrong
with parameters that do not fit the settings. May import: `errors`, pallas_kernels.
Read next: `transform.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jzero.errors import ConfigError, format_problem
from pallas_kernels import choose_tile

__all__ = ["EMBEDDINGS", "Leaf", "Storage", "decay_flags", "list_leaves"]

EMBEDDINGS = (
    r"(?i)^(?!.*(un|patch|(?<![a-z])pos[a-z]*)[_-]?embed)(?!.*embed[a-z]*_?out).*embed",
    r"\bwte\b",
)
"""Patterns of the paths of tables of tokens, whose gradients are sparse and uneven.

Not of tables of positions, of which every batch uses each row, and not of patches and
output heads, which are matrices like any other.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How an optimizer stores its state.

    Attributes:
        is_coded: Moments are 8-bit codes where a leaf allows it.
        min_coded_elems: Leaves with fewer elements keep float32 moments.
        keep_float32: Patterns of paths that keep float32 moments.
        param_dtype: The dtype that float parameters must have, or None.
        is_stochastic: bfloat16 parameters are rounded by chance.
    """

    is_coded: bool
    min_coded_elems: int
    keep_float32: tuple[str, ...]
    param_dtype: Any
    is_stochastic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One parameter as an optimizer sees it.

    Attributes:
        path: As people read it.
        shape: Its shape.
        dtype: Its dtype.
        tile: The block of its 8-bit moments; None keeps them in float32.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Any
    tile: tuple[int, ...] | None


def list_leaves(params: Any, storage: Storage) -> list[Leaf]:
    """Describes the leaves of a tree of parameters.

    Raises:
        ConfigError: Parameters are not floats, or not of the dtype that was asked
            for, or none of them is of a dtype that is rounded.
    """
    rows = jax.tree_util.tree_flatten_with_path(params)[0]
    leaves = [
        Leaf(
            path=(path := jax.tree_util.keystr(keys)),
            shape=tuple(np.shape(value)),
            dtype=jnp.result_type(value),
            tile=_tile(path, tuple(np.shape(value)), storage),
        )
        for keys, value in rows
    ]
    _check(leaves, storage)
    return leaves


def _tile(
    path: str, shape: tuple[int, ...], storage: Storage
) -> tuple[int, ...] | None:
    if not storage.is_coded or prod(shape) < storage.min_coded_elems:
        return None
    if any(re.search(pattern, path) for pattern in storage.keep_float32):
        return None
    return choose_tile(shape)


def _check(leaves: Sequence[Leaf], storage: Storage) -> None:
    rows = [(leaf, (leaf.path, f"{leaf.shape} {leaf.dtype}")) for leaf in leaves]
    ints = [row for leaf, row in rows if not jnp.issubdtype(leaf.dtype, jnp.floating)]
    if ints:
        raise ConfigError(
            format_problem(
                "Leaves that are no floats cannot be optimized:",
                ints,
                "leave them out, e.g. by optax.masked or optax.multi_transform.",
            )
        )
    wanted = storage.param_dtype
    wrong = [row for leaf, row in rows if wanted and leaf.dtype != wanted]
    if wrong:
        raise ConfigError(
            format_problem(
                f"The optimizer was made for {jnp.dtype(wanted).name} parameters, but "
                "these are of another dtype:",
                wrong,
                "cast them before training, or leave params=... out.",
            )
        )
    is_rounded = any(leaf.dtype == jnp.bfloat16 for leaf in leaves)
    if storage.is_stochastic and leaves and not is_rounded:
        raise ConfigError(
            format_problem(
                'rounding="stochastic" has no effect, since no parameter is bfloat16:',
                [row for _, row in rows],
                'cast them to bfloat16, or use rounding="nearest".',
                max_rows=20,
            )
        )


Mask = Any | Callable[[Any], Any] | None


def decay_flags(mask: Mask, params: Any) -> list[bool]:
    """Returns for each leaf whether weight decay applies, as `optax.adamw` reads it.

    Raises:
        ConfigError: The mask's structure does not fit the parameters'.
    """
    treedef = jax.tree.structure(params)
    if mask is None:
        return [True] * treedef.num_leaves
    tree = mask(params) if callable(mask) else mask
    try:
        # A mask may be a prefix: one flag for a whole branch.
        spread = jax.tree.map(
            lambda flag, branch: jax.tree.map(lambda _: bool(flag), branch),
            tree,
            params,
        )
    except ValueError as error:
        raise ConfigError(
            format_problem(
                "mask=... does not have the structure of the parameters, or of their "
                f"upper levels: {error}",
                (),
                "pass a tree of bools, or a function that makes one of parameters.",
            )
        ) from error
    return jax.tree.leaves(spread)
