"""The update of many leaves at once, by the backend that suits.

Lives here: `fused_update`, the public function, and which leaves share a launch. It is
traced as a call that says what it is, so that the backend can be chosen later. May
import: everything else in this package. Read next: `marked.py`, `rows.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.backends import (
    check_backend,
    find_kernel,
    is_reference,
    runs_on_shards,
)
from pallas_kernels.marked import UpdateSpec, mark
from pallas_kernels.rounding import element_index, step_key
from pallas_kernels.rows import Member, RowsFormat, fits_rows, join, split
from pallas_kernels.rules import Rule, Scalars
from pallas_kernels.shardwise import WHOLE, Dim, Dims, Place, shardwise
from pallas_kernels.update import LeafFormat, LeafState, Updated, update_leaf

__all__ = ["fused_update", "run_update"]

Run = Callable[[Rule, Sequence[Member], Scalars], list[Updated]]

SMALL_ELEMS = 2**16
"""Leaves with fewer elements share a launch: copying them costs less than starting."""

MAX_MEMBERS = 64
"""Leaves of one launch. XLA joins and splits so many in a fusion or two; of a few more
it makes one for every array."""


def fused_update(
    rules: Sequence[Rule],
    forms: Sequence[LeafFormat],
    states: Sequence[LeafState],
    scalars: Scalars,
    *,
    seed: Any = 0,
    step: Any = 0,
    backend: str = "auto",
) -> list[Updated]:
    """Updates leaves in as few passes over memory as the backend can.

    Args:
        rules: The optimizer of each leaf, with its hyperparameters.
        forms: How each leaf is stored.
        states: The arrays of each leaf.
        scalars: What is the same for every element of every leaf.
        seed: Of the random bits for stochastic rounding.
        step: A number that differs from step to step.
        backend: "xla" is the reference, and what "auto" takes until a kernel was
            measured to be faster. "mosaic_gpu" runs one kernel per large leaf and one
            for 64 small leaves of a kind, in place if the arguments are donated;
            "pallas_tpu" the same on TPUs. "..._interpret" runs them on a CPU, the
            first of whole arrays only. Leaves whose delta is asked for go by the
            reference.

    Returns:
        One record per leaf, in order.

    Raises:
        ValueError: There is no such backend, or a kernel does not fit a leaf's blocks.
        NotImplementedError: This JAX is too old for the backend.

    Example:
        >>> from pallas_kernels.rules import Momentum
        >>> state = LeafState(jnp.ones(3), jnp.ones(3), (jnp.zeros(3),))
        >>> fused_update(
        ...     [Momentum()], [LeafFormat()], [state], Scalars(1.0, 0.5, 1, 1, 0)
        ... )[0].param
        Array([0.5, 0.5, 0.5], dtype=float32)
    """
    check_backend(backend)
    scalars = Scalars(*(jnp.asarray(s, jnp.float32) for s in scalars))
    brought = list(states), scalars, jnp.asarray(seed), jnp.asarray(step)
    arrays, structure = jax.tree.flatten(brought)
    spec = UpdateSpec(
        rules=tuple(rules),
        forms=tuple(forms),
        backend=backend,
        structure=structure,
        kinds=tuple((tuple(jnp.shape(a)), str(jnp.result_type(a))) for a in arrays),
    )
    return _marked_update(spec, *arrays)


@functools.partial(jax.jit, static_argnums=0)
def _marked_update(spec: UpdateSpec, *arrays: Any) -> list[Updated]:
    states, scalars, seed, step = spec.structure.unflatten(arrays)
    scalars = scalars._replace(grad_scale=mark(scalars.grad_scale, spec))
    return run_update(spec, *jax.tree.leaves((states, scalars, seed, step)))


def run_update(spec: UpdateSpec, *arrays: Any) -> list[Updated]:
    """Updates leaves as a spec says: what `fused_update` is a call of.

    Args:
        spec: The update.
        *arrays: The leaves of its structure.

    Returns:
        One record per leaf, in order.

    Raises:
        ValueError: A kernel does not fit a leaf's blocks.
        NotImplementedError: This JAX is too old for the backend.
    """
    states, scalars, seed, step = spec.structure.unflatten(arrays)
    rules, forms = spec.rules, spec.forms
    name, has_kernels = spec.backend, not is_reference(spec.backend)
    leaves = [
        _Leaf(rule, form, state, _key(form, seed, step))
        for rule, form, state in zip(rules, forms, states, strict=True)
    ]
    if has_kernels:
        _check_blocks([leaf for leaf in leaves if leaf.can_have_kernel], name)
    done: dict[int, Updated] = {}
    for members in _groups(leaves, has_kernels=has_kernels):
        group = [leaves[i] for i in members]
        run: Run = _run_reference
        # Element by element, the partitioner knows what to do by itself.
        is_local = bool(group[0].state.scales)
        if has_kernels and group[0].can_have_kernel:
            run = _runner(name)
            is_local = runs_on_shards(name)
        if is_local:
            new = _run_on_shards(run, group, scalars)
        else:
            new = run(group[0].rule, [leaf.alone() for leaf in group], scalars)
        done.update(zip(members, new, strict=True))
    return [
        _only(done[i], form) for i, form in zip(range(len(leaves)), forms, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Leaf:
    rule: Rule
    form: LeafFormat
    state: LeafState
    key: Any

    @property
    def can_have_kernel(self) -> bool:
        """Whether a kernel may run on it: not for deltas, nor for nothing."""
        return not self.form.returns_delta and self.state.param.size > 0

    def alone(self) -> Member:
        """The leaf as a whole array."""
        dims = _dims(self.state, "leaf")
        return Member(
            form=self.form, state=self.state, key=self.key, dims=dims, place=WHOLE
        )

    @property
    def kind(self) -> tuple[Any, ...]:
        """What leaves of one launch have in common."""
        state, form = self.state, self.form
        arrays = (state.param, state.grad, *state.moments, *state.scales)
        dtypes = tuple(str(array.dtype) for array in arrays)
        copy = None if form.copy_dtype is None else str(jnp.dtype(form.copy_dtype))
        return (self.rule, dtypes, copy, form.is_stochastic, form.tile is None)


def _key(form: LeafFormat, seed: Any, step: Any) -> Any:
    return step_key(seed, step, form.leaf) if form.is_stochastic else jnp.uint32(0)


def _groups(leaves: Sequence[_Leaf], *, has_kernels: bool) -> list[list[int]]:
    """Returns which leaves share a launch: the small ones of a kind."""
    groups: list[list[int]] = []
    small: dict[Any, list[int]] = {}
    for index, leaf in enumerate(leaves):
        is_small = has_kernels and 0 < leaf.state.param.size < SMALL_ELEMS
        if not is_small or leaf.form.returns_delta:
            groups.append([index])
        elif leaf.kind in small and len(small[leaf.kind]) < MAX_MEMBERS:
            small[leaf.kind].append(index)
        else:
            small[leaf.kind] = [index]
            groups.append(small[leaf.kind])
    return groups


def _only(done: Updated, form: LeafFormat) -> Updated:
    if form.returns_delta:
        return done._replace(param=None, copy=None)
    return done._replace(delta=None)


def _dims(state: LeafState, tag: str) -> Dims:
    """Names the dims of a leaf and of its scales."""
    parts = state.scales[0].shape if state.scales else state.param.shape
    return tuple(Dim(f"{tag}d{i}", n) for i, n in enumerate(parts))


def _check_blocks(leaves: Sequence[_Leaf], backend: str) -> None:
    wrong = [
        f"  {leaf.form.name} {leaf.state.param.shape} with blocks of {leaf.form.tile}"
        for leaf in leaves
        if not fits_rows(leaf.form, leaf.state.param.shape)
    ]
    if wrong:
        raise ValueError(
            f"{backend} updates blocks of 256 neighbours in memory, which these are "
            "not:\n" + "\n".join(wrong) + "\n"
            'Remedy: keep their moments in float32, or use backend="xla".'
        )


def _run_reference(
    rule: Rule, members: Sequence[Member], scalars: Scalars
) -> list[Updated]:
    done = []
    for member in members:
        index = None
        if member.form.is_stochastic:
            shape = member.state.param.shape
            index = element_index(
                shape,
                global_shape=member.place.whole_shape(member.dims, shape),
                starts=member.place.starts(member.dims, shape),
            )
        done.append(
            update_leaf(
                rule, member.form, member.state, scalars, key=member.key, index=index
            )
        )
    return done


def _runner(backend: str) -> Run:
    """Returns a function that updates leaves of one kind by one launch."""
    update_rows = find_kernel(backend, "update_rows")

    def run(rule: Rule, members: Sequence[Member], scalars: Scalars) -> list[Updated]:
        form = members[0].form
        rows_form = RowsFormat(
            is_coded=form.tile is not None,
            copy_dtype=form.copy_dtype,
            is_stochastic=form.is_stochastic,
        )
        kept, copy = update_rows(rule, rows_form, join(rule, members, scalars))
        shapes = [member.state.param.shape for member in members]
        count = len(rule.signs)
        whole = [split(array, shapes) for array in kept[: 1 + count]]
        counts = [m.state.scales[0].shape for m in members if m.state.scales]
        scales = [split(array, counts) for array in kept[1 + count :]]
        copies = [None] * len(members) if copy is None else split(copy, shapes)
        return [
            Updated(
                param=whole[0][i],
                moments=tuple(arrays[i] for arrays in whole[1:]),
                scales=tuple(arrays[i] for arrays in scales),
                copy=copies[i],
                delta=None,
            )
            for i in range(len(members))
        ]

    return run


def _run_on_shards(run: Run, group: Sequence[_Leaf], scalars: Scalars) -> list[Updated]:
    """Runs on whatever shards the leaves have, without moving them."""
    rule = group[0].rule
    num_moments = len(rule.signs)
    all_dims = [_dims(leaf.state, f"leaf{i}") for i, leaf in enumerate(group)]
    arrays: list[jax.Array] = [
        jnp.stack(scalars),
        jnp.stack([leaf.key for leaf in group]),
    ]
    operands: list[Dims] = [(Dim("packed", 1),), (Dim("keys", 1),)]
    results: list[Dims] = []
    for leaf, dims in zip(group, all_dims, strict=True):
        state = leaf.state
        own = [state.param, state.grad, *state.moments, *state.scales]
        arrays += own
        operands += [dims] * len(own)
        # What `flatten` below returns: all but the gradient, and perhaps a copy.
        results += [dims] * (len(own) - 1 + (_has_copy(leaf.form)))

    def local(place: Place, *shards: jax.Array) -> list[jax.Array]:
        packed, keys, *rest = shards
        members = []
        for i, leaf in enumerate(group):
            width = 2 + num_moments + len(leaf.state.scales)
            own, rest = rest[:width], rest[width:]
            moments, scales = own[2 : 2 + num_moments], own[2 + num_moments :]
            state = LeafState(own[0], own[1], tuple(moments), tuple(scales))
            members.append(
                Member(
                    form=leaf.form,
                    state=state,
                    key=keys[i],
                    dims=all_dims[i],
                    place=place,
                )
            )
        shared = Scalars(*(packed[i] for i in range(len(Scalars._fields))))
        return [
            array
            for new, leaf in zip(run(rule, members, shared), group, strict=True)
            for array in _flatten(new, leaf.form)
        ]

    out = shardwise(local, arrays, operands=operands, results=results)
    done = []
    for leaf in group:
        width = 1 + _has_copy(leaf.form) + num_moments + len(leaf.state.scales)
        done.append(_unflatten(out[:width], leaf.form, num_moments))
        out = out[width:]
    return done


def _has_copy(form: LeafFormat) -> bool:
    return form.copy_dtype is not None and not form.returns_delta


def _flatten(new: Updated, form: LeafFormat) -> list[Any]:
    firsts = [new.delta if form.returns_delta else new.param]
    if _has_copy(form):
        firsts.append(new.copy)
    return [*firsts, *new.moments, *new.scales]


def _unflatten(arrays: Sequence[Any], form: LeafFormat, num_moments: int) -> Updated:
    first, *rest = arrays
    copy = rest.pop(0) if _has_copy(form) else None
    return Updated(
        param=None if form.returns_delta else first,
        moments=tuple(rest[:num_moments]),
        scales=tuple(rest[num_moments:]),
        copy=copy,
        delta=first if form.returns_delta else None,
    )
