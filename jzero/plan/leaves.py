"""What planning knows about a leaf: where it is, its shape and its dtype.

Lives here: `LeafFacts` and the walk over a tree that makes them. May import:
`errors`, and `jax.tree_util` for key paths. Read next: `roles.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec
from jax.tree_util import (
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    SequenceKey,
    keystr,
    tree_flatten_with_path,
)

from jzero.errors import InternalError, StateError, format_problem

__all__ = ["DType", "LeafFacts", "describe_tree", "is_inexact", "is_key_dtype"]

# A numpy dtype, or one of JAX's extended dtypes such as `key<fry>`, which numpy's
# type does not cover.
DType = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafFacts:
    """One leaf of one argument of the step.

    Attributes:
        path: The path a person reads, e.g. `state.params['mlp']['kernel']`.
        keys: The path's components as plain text, without the argument's name.
            The `.value` by which boxes and `nnx` variables end is left out.
        arg: The index of the argument that holds the leaf.
        shape: The global shape.
        dtype: The dtype, extended key dtypes included.
        base_spec: The mesh axes that the user already put on the leaf.
        stacked_dims: Dims that a loop over layers consumes; never sharded.
        attrs: Per key, whether it is an attribute (of a dataclass or NamedTuple)
            and not the user's own dict key. Empty when not known.
    """

    path: str
    keys: tuple[str, ...]
    arg: int
    shape: tuple[int, ...]
    dtype: DType
    base_spec: PartitionSpec = PartitionSpec()
    stacked_dims: tuple[int, ...] = ()
    attrs: tuple[bool, ...] = ()

    @property
    def size_elems(self) -> int:
        """The number of elements of the global array."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """The bytes of the global array."""
        return self.size_elems * self.dtype.itemsize


def is_key_dtype(dtype: DType) -> bool:
    """Says whether a dtype is that of typed random keys."""
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def is_inexact(dtype: DType) -> bool:
    """Says whether a dtype is floating or complex, so that it can be trained."""
    return jax.dtypes.issubdtype(dtype, np.inexact)


def describe_tree(
    tree: Any,
    *,
    arg: int,
    name: str,
    base_specs: Sequence[PartitionSpec | None] | None = None,
    stacked_dims: Sequence[Sequence[int] | None] | None = None,
) -> tuple[LeafFacts, ...]:
    """Lists the facts of every leaf of a tree, in flattening order.

    Args:
        tree: A pytree of arrays, `ShapeDtypeStruct`s, tracers, or Python scalars.
        arg: The index of the argument that the tree is.
        name: The argument's name, with which the paths begin.
        base_specs: Per leaf, the user's own partition spec.
        stacked_dims: Per leaf, the dims that a loop over layers consumes.

    Returns:
        One record per leaf.

    Raises:
        StateError: A leaf is neither an array nor a number.

    Example:
        >>> leaf, = describe_tree({"w": np.ones((4, 2), "float32")}, arg=0, name="p")
        >>> leaf.path, leaf.shape, leaf.size_bytes
        ("p['w']", (4, 2), 32)
    """
    raise NotImplementedError
