"""Which dim of a leaf is split over the ZeRO axes.

Lives here: the sharding rule and the arithmetic of partition specs. May import:
`errors`, `leaves.py`. Read next: `plan.py`, which applies the rule to a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import cast

from jax.sharding import PartitionSpec

from jzero.errors import MeshError, StateError, format_problem
from jzero.plan.leaves import DType, LeafFacts

__all__ = [
    "check_axes",
    "describe_axes",
    "format_spec",
    "local_bytes",
    "local_shape",
    "normalize_spec",
    "plan_leaf_spec",
    "spec_axes",
]


def normalize_spec(
    spec: PartitionSpec | Sequence[str | Sequence[str] | None], num_dims: int
) -> tuple[tuple[str, ...], ...]:
    """Returns the mesh axes on each dim, one tuple per dim.

    Args:
        spec: A partition spec; it may name fewer dims than there are.
        num_dims: The rank of the array.

    Raises:
        StateError: The spec names more dims than the array has.

    Example:
        >>> normalize_spec(PartitionSpec("model", None, ("a", "b")), 4)
        (('model',), (), ('a', 'b'), ())
    """
    entries = [_entry_axes(entry) for entry in spec]
    while len(entries) > num_dims and not entries[-1]:
        entries.pop()
    if len(entries) > num_dims:
        raise StateError(
            f"A spec of {len(entries)} dims, {tuple(spec)}, does not fit an array of "
            f"{num_dims}."
        )
    return tuple(entries) + ((),) * (num_dims - len(entries))


def spec_axes(spec: PartitionSpec) -> tuple[str, ...]:
    """Returns every mesh axis that a spec uses, in order.

    Example:
        >>> spec_axes(PartitionSpec("model", ("a", "b")))
        ('model', 'a', 'b')
    """
    return tuple(axis for entry in spec for axis in _entry_axes(entry))


def format_spec(spec: PartitionSpec) -> str:
    """Writes a spec in short, the same in every version of JAX.

    Example:
        >>> format_spec(PartitionSpec(None, ("a", "b")))
        "P(None, ('a', 'b'))"
    """
    return f"P({', '.join(map(repr, spec))})"


def describe_axes(axes: Sequence[str], axis_sizes: Mapping[str, int]) -> str:
    """Names axes with their sizes.

    Example:
        >>> describe_axes(("data", "fsdp"), {"data": 2, "fsdp": 4})
        'data=2 x fsdp=4'
    """
    return " x ".join(f"{axis}={axis_sizes[axis]}" for axis in axes)


def check_axes(
    axes: Sequence[str], axis_sizes: Mapping[str, int], *, setting: str
) -> None:
    """Raises `MeshError` unless the mesh has every named axis.

    Args:
        axes: The names.
        axis_sizes: The size of each mesh axis.
        setting: The field of `ZeroConfig` that names them.
    """
    missing = [axis for axis in axes if axis not in axis_sizes]
    if missing:
        raise MeshError(
            format_problem(
                f"The mesh lacks {', '.join(map(repr, missing))}, which "
                f"ZeroConfig({setting}=...) names. It has:",
                [(repr(axis), f"size {size}") for axis, size in axis_sizes.items()],
                f"set ZeroConfig({setting}=...) to axes of the mesh, or make the mesh "
                f"with an axis {missing[0]!r}.",
            )
        )


def local_shape(
    shape: Sequence[int], spec: PartitionSpec, axis_sizes: Mapping[str, int]
) -> tuple[int, ...]:
    """Returns the shape of the largest shard on one device.

    Args:
        shape: The global shape.
        spec: The spec of the array.
        axis_sizes: The size of each mesh axis.

    Example:
        >>> local_shape((16, 6), PartitionSpec("data"), {"data": 8})
        (2, 6)
    """
    dims = normalize_spec(spec, len(shape))
    return tuple(
        -(-size // prod(axis_sizes[axis] for axis in axes))
        for size, axes in zip(shape, dims, strict=True)
    )


def local_bytes(
    shape: Sequence[int],
    dtype: DType,
    spec: PartitionSpec,
    axis_sizes: Mapping[str, int],
) -> int:
    """Returns the bytes of the largest shard on one device.

    Example:
        >>> import numpy as np
        >>> local_bytes((16, 6), np.dtype("f4"), PartitionSpec("data"), {"data": 8})
        48
    """
    return prod(local_shape(shape, spec, axis_sizes)) * dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The ZeRO axes to add to one dim."""

    dim: int
    axes: tuple[str, ...]
    is_extension: bool


def plan_leaf_spec(
    leaf: LeafFacts,
    *,
    axis_sizes: Mapping[str, int],
    zero_axes: tuple[str, ...],
    threshold_elems: int,
) -> tuple[PartitionSpec, str]:
    """Chooses the dim of a leaf to split over the ZeRO axes.

    The first long dim that the product of the ZeRO axes divides and that no axis of
    the user holds: shards of the first dim are joined by laying one behind the other,
    while a gather over a later dim has XLA keep a transposed copy of every shard (5
    GB of 32 for a scanned model of 13 B on 8 devices). A dim that a loop over layers
    consumes is never split: every iteration would have to gather it. Only if no free
    dim divides, a dim that the user split is split further. With several ZeRO axes
    that fit nowhere together, the subset with the largest product that fits is
    taken. The user's own axes always stay where they are.

    ```
    (16, 6), data=8             (6, 16), base P('model', None), model=2, data=8
    dim 0 -> 8 shards (2, 6)    dim 1 -> 2 x 8 shards (3, 2)
    ```

    Args:
        leaf: The leaf.
        axis_sizes: The size of each mesh axis.
        zero_axes: The axes to split over.
        threshold_elems: Leaves with fewer elements stay as they are.

    Returns:
        The spec at rest, and why it is so. The spec is `leaf.base_spec` itself
        when nothing is added.

    Raises:
        MeshError: The base spec names an axis that the mesh does not have.

    Source: ZeRO, arXiv 1910.02054, section 5; the choice of dim is jzero's own.

    Example:
        >>> import numpy as np
        >>> leaf = LeafFacts(
        ...     path="w", keys=("w",), arg=0, shape=(6, 16), dtype=np.dtype("f4")
        ... )
        >>> plan_leaf_spec(
        ...     leaf, axis_sizes={"data": 8}, zero_axes=("data",), threshold_elems=0
        ... )[1]
        'dim 1 of 16 over data=8'
    """
    usable = tuple(axis for axis in zero_axes if axis_sizes[axis] > 1)
    held = _check_base_spec(leaf, axis_sizes)
    base = leaf.base_spec
    why_whole = _why_whole(leaf, zero_axes, threshold_elems)
    if why_whole is not None:
        return base, why_whole
    if not usable:
        return base, f"{describe_axes(zero_axes, axis_sizes)} splits nothing"
    choice = _choose(leaf, held, usable, axis_sizes)
    if choice is None:
        return base, _nothing_divides(leaf, usable, axis_sizes)
    entries = [
        axes + choice.axes if dim == choice.dim else axes
        for dim, axes in enumerate(held)
    ]
    reason = (
        f"dim {choice.dim} of {leaf.shape[choice.dim]} over "
        f"{describe_axes(choice.axes, axis_sizes)}"
    )
    if choice.is_extension:
        reason += f", on top of {describe_axes(held[choice.dim], axis_sizes)}"
    if choice.axes != usable:
        left_out = tuple(axis for axis in usable if axis not in choice.axes)
        reason += f"; {describe_axes(left_out, axis_sizes)} divides no dim further"
    return _to_spec(entries), reason


def _check_base_spec(
    leaf: LeafFacts, axis_sizes: Mapping[str, int]
) -> tuple[tuple[str, ...], ...]:
    """Returns the user's axes on each dim, or raises."""
    base = leaf.base_spec
    if unknown := [axis for axis in spec_axes(base) if axis not in axis_sizes]:
        raise MeshError(
            format_problem(
                f"A leaf is split over {', '.join(map(repr, unknown))}, which the "
                f"mesh with the axes {tuple(axis_sizes)} does not have:",
                [(leaf.path, f"{leaf.shape} {format_spec(base)}")],
                "build the step with the mesh that the leaf was placed on.",
            )
        )
    try:
        return normalize_spec(base, len(leaf.shape))
    except StateError as error:
        raise StateError(f"{leaf.path} of shape {leaf.shape}: {error}") from None


def _why_whole(
    leaf: LeafFacts, zero_axes: tuple[str, ...], threshold_elems: int
) -> str | None:
    """Returns why a leaf stays as it is whatever the mesh; None if it may not."""
    own = [axis for axis in spec_axes(leaf.base_spec) if axis in zero_axes]
    if own:
        return f"already split over {', '.join(own)} by the caller"
    if not leaf.shape:
        return "a scalar"
    if leaf.size_elems == 0:
        return "empty"
    if leaf.size_elems < threshold_elems:
        return f"{leaf.size_elems} elements, below {threshold_elems}"
    return None


def _choose(
    leaf: LeafFacts,
    held: tuple[tuple[str, ...], ...],
    usable: tuple[str, ...],
    axis_sizes: Mapping[str, int],
) -> _Choice | None:
    """Finds the best dim; a larger set of axes beats a free dim."""
    for axes in _subsets(usable, axis_sizes):
        num_shards = prod(axis_sizes[axis] for axis in axes)
        for is_extension in (False, True):
            fitting: list[tuple[int, int]] = []
            for dim, size in enumerate(leaf.shape):
                if dim in leaf.stacked_dims or bool(held[dim]) != is_extension:
                    continue
                if size % (num_shards * prod(axis_sizes[axis] for axis in held[dim])):
                    continue
                fitting.append((size, dim))
            if fitting:
                dim = _first_long(fitting, len(leaf.shape))
                return _Choice(dim=dim, axes=axes, is_extension=is_extension)
    return None


def _first_long(fitting: list[tuple[int, int]], num_dims: int) -> int:
    """The first dim of a quarter of the longest and more, out of (size, dim).

    A short first dim may stack layers, which shows only once the step is seen. For
    the same reason the first of three dims must be the longest.
    """
    longest = max(size for size, _ in fitting)
    for size, dim in fitting:
        may_stack = dim == 0 and num_dims > 2 and size < longest
        if 4 * size >= longest and not may_stack:
            return dim
    return max(fitting)[1]


def _subsets(
    axes: tuple[str, ...], axis_sizes: Mapping[str, int]
) -> Iterator[tuple[str, ...]]:
    """Yields the non-empty subsets by falling product, larger ones first."""
    subsets = [
        subset
        for num_axes in range(len(axes), 0, -1)
        for subset in combinations(axes, num_axes)
    ]
    yield from sorted(subsets, key=lambda s: -prod(axis_sizes[axis] for axis in s))


def _nothing_divides(
    leaf: LeafFacts, usable: tuple[str, ...], axis_sizes: Mapping[str, int]
) -> str:
    text = f"no dim of {leaf.shape} divides by {describe_axes(usable, axis_sizes)}"
    if leaf.stacked_dims:
        stacked = ", ".join(map(str, leaf.stacked_dims))
        text += f" (stacked dim {stacked} left out)"
    if len(leaf.base_spec):
        text += f" beside {format_spec(leaf.base_spec)}"
    return text


def _entry_axes(entry: object) -> tuple[str, ...]:
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    if isinstance(entry, str):
        return (entry,)
    return tuple(cast(Iterable[str], entry))


def _to_spec(dims: Sequence[tuple[str, ...]]) -> PartitionSpec:
    entries = [axes if len(axes) > 1 else axes[0] if axes else None for axes in dims]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)
