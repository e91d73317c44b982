"""Leaves that are held are known again, and freed with the state they belong to."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from jzero.runtime.held import Held


class Leaf:
    """Stands for an array, which cannot be compared by `==` either."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("leaves are compared by identity")

    __hash__ = None


def hold(num_leaves: int) -> tuple[Held, list[Leaf]]:
    leaves = [Leaf() for _ in range(num_leaves)]
    held = Held(lambda outs: outs[:num_leaves], num_leaves)
    held.keep([*leaves, Leaf()])
    return held, leaves


@pytest.mark.parametrize("num_leaves", (1, 2, 3, 10))
def test_the_very_leaves_are_known_once(num_leaves: int) -> None:
    held, leaves = hold(num_leaves)
    assert held.release([leaves[:1], leaves[1:]])
    assert not held.release([leaves[:1], leaves[1:]])


@pytest.mark.parametrize("number", range(10))
def test_any_other_leaf_is_noticed(number: int) -> None:
    held, leaves = hold(10)
    leaves[number] = Leaf()
    assert not held.release([leaves[:4], leaves[4:]])


@pytest.mark.parametrize("kept", (slice(0), slice(5), slice(5, None)))
def test_what_the_user_drops_is_freed(kept: slice) -> None:
    held, leaves = hold(10)
    watches: list[weakref.ref[Any]] = [weakref.ref(leaf) for leaf in leaves]
    still_used = leaves[kept]
    del leaves
    assert sum(watch() is not None for watch in watches) == len(still_used)
    assert not held.release([still_used])
