"""What planning knows about a leaf: where it is, its shape and its dtype.

Lives here: `LeafFacts` and the walk over a tree that makes them. May import:
`errors`, and `jax.tree_util` for key paths. Read next: `roles.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util
from jax.sharding import PartitionSpec
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from jzero.errors import InternalError, StateError, format_problem

__all__ = [
    "DType",
    "LeafFacts",
    "describe_tree",
    "describe_type",
    "is_extended_dtype",
    "is_inexact",
    "is_key_dtype",
]

# A numpy dtype, or one of JAX's extended dtypes such as `key<fry>`, which numpy's
# type does not cover.
DType = Any

_T = TypeVar("_T")

_WHOLE = PartitionSpec()

# JAX leaves the entries of its key paths untyped.
_tree_util = cast(Any, tree_util)

# The attribute by which flax ends the path of a boxed parameter or a Variable.
_BOX_ATTRS = ("value", "raw_value")


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
    base_spec: PartitionSpec = _WHOLE
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


def is_extended_dtype(dtype: DType) -> bool:
    """Says whether a dtype is one of JAX's own, which numpy does not know."""
    return jnp.issubdtype(dtype, jax.dtypes.extended)


def is_key_dtype(dtype: DType) -> bool:
    """Says whether a dtype is that of typed random keys."""
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def is_inexact(dtype: DType) -> bool:
    """Says whether a dtype is floating or complex, so that it can be trained."""
    return jnp.issubdtype(dtype, np.inexact)


def describe_type(leaf: LeafFacts) -> str:
    """Returns dtype and shape as one text, e.g. `float32[4,2]`."""
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


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
    flat, _ = _tree_util.tree_flatten_with_path(tree)
    specs = _per_leaf(base_specs, len(flat), "base_specs")
    stacks = _per_leaf(stacked_dims, len(flat), "stacked_dims")
    facts: list[LeafFacts] = []
    wrong: list[tuple[str, str]] = []
    for (path, leaf), spec, stacked in zip(flat, specs, stacks, strict=True):
        text = name + _tree_util.keystr(path)
        array_type = _array_type(leaf)
        if array_type is None:
            wrong.append((text, f"a {type(leaf).__name__}"))
            continue
        kept = path[:-1] if _is_box(path) else path
        facts.append(
            LeafFacts(
                path=text,
                keys=tuple(_component(entry) for entry in kept),
                arg=arg,
                shape=array_type[0],
                dtype=array_type[1],
                base_spec=_WHOLE if spec is None else spec,
                stacked_dims=tuple(stacked or ()),
                attrs=tuple(isinstance(entry, GetAttrKey) for entry in kept),
            )
        )
    if wrong:
        raise StateError(
            format_problem(
                f"Argument {name!r} holds leaves that are neither arrays nor numbers:",
                wrong,
                "make them static fields of the tree, or pass them through "
                "static_argnums or static_argnames.",
            )
        )
    return tuple(facts)


def _array_type(leaf: Any) -> tuple[tuple[int, ...], DType] | None:
    """Returns the shape and dtype that `jax.jit` would give a leaf."""
    if isinstance(leaf, np.ndarray | np.generic) or not hasattr(leaf, "dtype"):
        try:
            leaf = jax.typeof(leaf)
        except TypeError:
            return None
    dtype = leaf.dtype
    if not is_extended_dtype(dtype):
        # An abstract float64 becomes a float32 unless x64 is on.
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return tuple(leaf.shape), dtype


def _is_box(path: tuple[Any, ...]) -> bool:
    if not path:
        return False
    last = path[-1]
    return isinstance(last, GetAttrKey) and last.name in _BOX_ATTRS


def _component(entry: Any) -> str:
    if isinstance(entry, GetAttrKey):
        return entry.name
    if isinstance(entry, SequenceKey):
        return str(entry.idx)
    if isinstance(entry, DictKey | FlattenedIndexKey):
        return str(entry.key)
    return str(entry)


def _per_leaf(
    values: Sequence[_T | None] | None, num_leaves: int, name: str
) -> Sequence[_T | None]:
    if values is None:
        return [None] * num_leaves
    if len(values) != num_leaves:
        raise InternalError(
            f"describe_tree: {len(values)} {name} for {num_leaves} leaves"
        )
    return values
