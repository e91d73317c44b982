"""The index by path ending."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest

from jzero.plan.leaves import LeafFacts
from jzero.plan.mirrors import EndingIndex, MirrorIndex, find_mirror_trees
from tests.jzero.plan.states import describe

W = jnp.ones((4, 2))


def _leaf(tree: object) -> LeafFacts:
    (leaf,) = describe(p=tree)
    return leaf


def test_repeated_from_the_earliest_key() -> None:
    index = EndingIndex(describe(s={"mu": {"a": {"w": W}}}))
    assert index.start_of_repeated(_leaf({"a": {"w": W}})) == 0
    assert index.start_of_repeated(_leaf({"x": {"a": {"w": W}}})) == 1
    assert index.start_of_repeated(_leaf({"b": {"w": W}})) == 1
    assert index.start_of_repeated(_leaf({"v": W})) == 1  # a field: shape is enough
    assert index.start_of_repeated(_leaf({"b": {"v": W}})) is None
    assert index.start_of_repeated(_leaf({"a": {"w": W.T}})) is None
    assert index.start_of_repeated(_leaf(W)) == 0
    assert index.start_of_repeated(_leaf(1.0)) is None


def test_longest_ending_owns() -> None:
    leaves = describe(p={"w": W, "a": {"w": W}}, s={"mu": {"w": W, "a": {"w": W}}})
    params = {i: [leaves[i].keys] for i in range(2)}
    mirrors = MirrorIndex(leaves, params, ("p", "s"))
    for leaf in leaves[2:]:
        owner = mirrors.owner_of(leaf, allow_bare=False)
        assert owner is not None
        assert leaves[owner].keys == leaf.keys[1:]


def test_bare_owner_needs_permission_and_a_shape() -> None:
    leaves = describe(w=W, s={"x": W, "n": jnp.ones((4, 2), jnp.int32)})
    mirrors = MirrorIndex(leaves, {0: [()]}, ("w", "s"))
    number, moment = leaves[1:]
    assert mirrors.owner_of(moment, allow_bare=True) == 0
    assert mirrors.owner_of(moment, allow_bare=False) is None
    assert mirrors.owner_of(number, allow_bare=True) is None


def test_among_twins_the_place_decides() -> None:
    leaves = describe(
        state={"b_net": {"w": W}, "a_net": {"w": W}, "a_opt": {"w": W}, "x": {"w": W}}
    )
    at = {leaf.keys[0]: i for i, leaf in enumerate(leaves)}
    params = {at[name]: [("w",)] for name in ("a_net", "b_net")}
    mirrors = MirrorIndex(leaves, params, ("state",))
    a_opt, other = leaves[at["a_opt"]], leaves[at["x"]]
    assert mirrors.owner_of(a_opt, allow_bare=False) == at["a_net"]
    assert mirrors.owner_of(other, allow_bare=False) == min(params)


@pytest.mark.parametrize("is_single", [False, True])
def test_unnamed_optimizer_tree(is_single: bool) -> None:
    params = {"w": W, "b": jnp.ones(2)}
    moments = jax.tree.map(jnp.zeros_like, optax.adam(1e-3).init(params)[0].mu)
    tree = {"x": moments, "y": moments}
    leaves = describe(state=(params, tree)) if is_single else describe(p=params, s=tree)
    found = find_mirror_trees(leaves)
    assert {leaves[i].keys[-2] for i in found} == {"x", "y"}
    assert len(found) == 4


def test_a_tree_with_anything_of_its_own_is_no_mirror() -> None:
    leaves = describe(p={"w": W}, s={"x": {"w": W}, "other": jnp.ones(3)})
    assert find_mirror_trees(leaves) == frozenset()
    # Dict keys of a single argument may well be layers.
    assert find_mirror_trees(describe(p={"a": {"w": W}, "b": {"x": {"w": W}}})) == set()
