"""Properties of planning that hold for every tree, mesh and stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jzero.config import ZeroConfig
from jzero.plan.layout import local_bytes, local_shape, normalize_spec, spec_axes
from jzero.plan.leaves import LeafFacts, describe_tree
from jzero.plan.plan import LeafPlan, plan_state
from jzero.plan.roles import RoleInfo, assign_roles

# Compilation plays no part here, but the first call of anything in JAX is slow.
relaxed = settings(derandomize=True, deadline=None, max_examples=150)

DIMS = st.sampled_from([0, 1, 2, 3, 4, 6, 7, 8, 12, 16, 24, 40, 64])
SHAPES = st.lists(DIMS, max_size=4).map(tuple)
DTYPES = st.sampled_from(["float32", "bfloat16", "int32", "bool"])
NAMES = st.sampled_from(["w", "b", "kernel", "opt", "mu", "layer", "slow"])
MESHES = st.sampled_from(
    [
        {"data": 8},
        {"data": 1},
        {"data": 6},
        {"data": 4, "model": 2},
        {"data": 2, "model": 4},
        {"model": 2, "data": 3},
        {"data": 2, "fsdp": 2, "model": 2},
        {"data": 2, "fsdp": 4},
    ]
)
Sizes = Mapping[str, int]


@st.composite
def placed_leaves(draw: st.DrawFn, sizes: Sizes) -> LeafFacts:
    """Draws a leaf, perhaps stacked and perhaps split over `model`."""
    shape = draw(SHAPES)
    spec = PartitionSpec()
    if "model" in sizes:
        dims = [d for d, n in enumerate(shape) if n and n % sizes["model"] == 0]
        dim = draw(st.sampled_from([None, *dims]))
        if dim is not None:
            spec = PartitionSpec(*[None] * dim, "model")
    is_stacked = bool(shape) and draw(st.booleans())
    return LeafFacts(
        path="w",
        keys=("w",),
        arg=0,
        shape=shape,
        dtype=jax.numpy.dtype(draw(DTYPES)),
        base_spec=spec,
        stacked_dims=(0,) if is_stacked else (),
    )


@st.composite
def situations(draw: st.DrawFn) -> tuple[Sizes, LeafFacts, ZeroConfig]:
    """Draws a mesh, a leaf and settings that fit the mesh."""
    sizes = draw(MESHES)
    zero = tuple(axis for axis in ("data", "fsdp") if axis in sizes)
    axis = draw(st.sampled_from([zero, zero[:1]]))
    threshold = draw(st.sampled_from([0, 1, 16, 500]))
    config = ZeroConfig(axis=axis, persistence_threshold=threshold)
    return sizes, draw(placed_leaves(sizes)), config


def _plan_leaf(
    sizes: Sizes, leaf: LeafFacts, config: ZeroConfig, stage: int = 3
) -> LeafPlan:
    role = RoleInfo(role="parameter", owner=None, why="")
    (plan,) = plan_state([leaf], [role], stage=stage, config=config, axis_sizes=sizes)
    return plan


TREES = st.recursive(
    st.tuples(SHAPES, DTYPES),
    lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=4),
    max_leaves=8,
)


def _abstract(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _abstract(branch) for name, branch in tree.items()}
    shape, dtype = tree
    return jax.ShapeDtypeStruct(shape, dtype)


def _leaves_of_training(tree: Any) -> tuple[LeafFacts, ...]:
    """Returns the leaves of a step's arguments: parameters and two moments."""
    params = _abstract(tree)
    opt_state = ({"count": jax.ShapeDtypeStruct((), "int32")}, params, params)
    return (
        *describe_tree(params, arg=0, name="params"),
        *describe_tree(opt_state, arg=1, name="opt_state"),
    )


@relaxed
@given(situations())
def test_shards_cover_each_leaf_exactly_once(
    situation: tuple[Sizes, LeafFacts, ZeroConfig],
) -> None:
    sizes, leaf, config = situation
    plan = _plan_leaf(sizes, leaf, config)
    num_devices = prod(sizes.values())
    devices = np.array(jax.devices()[:num_devices]).reshape(tuple(sizes.values()))
    sharding = NamedSharding(Mesh(devices, tuple(sizes)), plan.spec)
    covered = np.zeros(leaf.shape, int)
    shards = {
        tuple(
            index.indices(n)[:2] for index, n in zip(indices, leaf.shape, strict=True)
        )
        for indices in sharding.devices_indices_map(leaf.shape).values()
    }
    for shard in shards:
        covered[tuple(slice(start, stop) for start, stop in shard)] += 1
        shape = tuple(stop - start for start, stop in shard)
        assert shape == local_shape(leaf.shape, plan.spec, sizes)
    assert (covered == 1).all()
    num_shards = prod(sizes[axis] for axis in spec_axes(plan.spec))
    assert plan.local_bytes * num_shards == plan.global_bytes


@relaxed
@given(situations())
def test_axes_are_added_and_never_moved(
    situation: tuple[Sizes, LeafFacts, ZeroConfig],
) -> None:
    sizes, leaf, config = situation
    plan = _plan_leaf(sizes, leaf, config)
    rank = len(leaf.shape)
    added: set[str] = set()
    changed: set[int] = set()
    before, after = (
        normalize_spec(leaf.base_spec, rank),
        normalize_spec(plan.spec, rank),
    )
    for dim, (old, new) in enumerate(zip(before, after, strict=True)):
        assert new[: len(old)] == old
        added |= set(new[len(old) :])
        changed |= {dim} if new != old else set()
    assert added <= set(config.axes)
    assert len(changed) <= 1
    assert not changed & set(leaf.stacked_dims)
    assert plan.is_sharded == bool(added)
    if leaf.size_elems < config.persistence_threshold:
        assert not added
    assert plan.reason


@relaxed
@given(situations())
def test_nothing_better_was_left_out(
    situation: tuple[Sizes, LeafFacts, ZeroConfig],
) -> None:
    """No other way to add ZeRO axes to one dim gives smaller shards."""
    sizes, leaf, config = situation
    plan = _plan_leaf(sizes, leaf, config)
    rank = len(leaf.shape)
    if not leaf.size_elems or leaf.size_elems < config.persistence_threshold:
        return
    held = normalize_spec(leaf.base_spec, rank)
    subsets = [config.axes, *((axis,) for axis in config.axes)]
    for dim, axes in product(range(rank), subsets):
        num_shards = prod(sizes[axis] for axis in (*held[dim], *axes))
        if dim in leaf.stacked_dims or leaf.shape[dim] % num_shards:
            continue
        entries = [(*own, *axes) if d == dim else own for d, own in enumerate(held)]
        other = PartitionSpec(*entries)
        other_bytes = local_bytes(leaf.shape, leaf.dtype, other, sizes)
        assert plan.local_bytes <= other_bytes


@relaxed
@given(TREES, MESHES, st.booleans())
def test_resident_bytes_never_rise_with_the_stage(
    tree: Any, sizes: Sizes, replicate_params: bool
) -> None:
    leaves = _leaves_of_training(tree)
    if not any(leaf.dtype in ("float32", "bfloat16") for leaf in leaves):
        return
    roles = assign_roles(leaves, arg_names=("params", "opt_state"))
    resident: list[int] = []
    for stage in range(3 if replicate_params else 4):
        config = ZeroConfig(persistence_threshold=0, replicate_params=replicate_params)
        plans = plan_state(leaves, roles, stage=stage, config=config, axis_sizes=sizes)
        resident.append(sum(plan.local_bytes for plan in plans))
        assert sum(plan.global_bytes for plan in plans) == sum(
            leaf.size_bytes for leaf in leaves
        )
    assert resident == sorted(resident, reverse=True)
    assert resident[0] == sum(leaf.size_bytes for leaf in leaves)


@relaxed
@given(TREES, MESHES)
def test_mirrors_share_the_spec_of_their_parameter(tree: Any, sizes: Sizes) -> None:
    leaves = _leaves_of_training(tree)
    if not any(leaf.dtype in ("float32", "bfloat16") for leaf in leaves):
        return
    roles = assign_roles(leaves, arg_names=("params", "opt_state"))
    config = ZeroConfig(persistence_threshold=0)
    plans = plan_state(leaves, roles, stage=3, config=config, axis_sizes=sizes)
    by_path = {plan.path: plan for plan in plans}
    for leaf, role, plan in zip(leaves, roles, plans, strict=True):
        is_float = leaf.dtype in ("float32", "bfloat16")
        if leaf.arg == 0:
            assert role.role == ("parameter" if is_float else "other")
        elif is_float and leaf.shape:
            # ("0" | "1" | "2", *path of the parameter)
            owner = by_path[plan.owner_path or ""]
            assert leaves[plans.index(owner)].keys == leaf.keys[1:]
            assert plan.spec == owner.spec


@relaxed
@given(TREES, MESHES)
def test_equal_inputs_give_equal_plans(tree: Any, sizes: Sizes) -> None:
    one, two = _leaves_of_training(tree), _leaves_of_training(tree)
    assert one == two and hash(one) == hash(two)
    if not any(leaf.dtype in ("float32", "bfloat16") for leaf in one):
        return
    roles = assign_roles(one, arg_names=("params", "opt_state"))
    config = ZeroConfig(persistence_threshold=4)
    first, second = (
        plan_state(leaves, roles, stage=3, config=replace(config), axis_sizes=sizes)
        for leaves in (one, two)
    )
    assert first == second and hash(first) == hash(second)
