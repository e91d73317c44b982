"""Leaves that repeat other leaves: the same path ending and the same shape.

Lives here: the index by path ending that finds, in time linear in the leaves, what
mirrors what (`opt_state[0].mu['w']` mirrors `params['w']`). May import:
`leaves.py`, `names.py`. Read next: `roles.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jzero.plan.leaves import LeafFacts, is_inexact
from jzero.plan.names import words

__all__ = ["EndingIndex", "MirrorIndex", "find_mirror_trees"]

Ending = tuple[tuple[str, ...], tuple[int, ...]]

# A state has a handful of trees. With more, the "trees" are layers of one model.
_MAX_TREES = 8


class EndingIndex:
    """Every path ending of some leaves, with the leaf's shape.

    Example:
        >>> import numpy as np
        >>> mu = LeafFacts(
        ...     path="s.mu['w']", keys=("mu", "w"), arg=1, shape=(4,),
        ...     dtype=np.dtype("f4"),
        ... )
        >>> ("w",) in [tail for tail, _ in EndingIndex([mu]).endings]
        True
    """

    def __init__(self, leaves: Iterable[LeafFacts]) -> None:
        self.endings: frozenset[Ending] = frozenset(
            (leaf.keys[start:], leaf.shape)
            for leaf in leaves
            for start in range(len(leaf.keys) + 1)
        )

    def start_of_repeated(self, leaf: LeafFacts, max_start: int = 3) -> int | None:
        """Returns from which key on a leaf's path is repeated by an indexed leaf.

        The smallest start wins, for it is the longest ending. The empty ending
        counts only for an array that is a whole argument, or one field of it.

        Args:
            leaf: The leaf, not itself in the index.
            max_start: How many leading keys may differ.

        Returns:
            The number of leading keys to drop; None if nothing repeats the leaf.
        """
        num_keys = len(leaf.keys)
        for start in range(min(max_start, num_keys) + 1):
            if start == num_keys and (num_keys > 1 or not leaf.shape):
                break
            if (leaf.keys[start:], leaf.shape) in self.endings:
                return start
        return None


class MirrorIndex:
    """Finds the parameter that a leaf mirrors.

    Args:
        leaves: All leaves.
        tails: Per parameter, by index, the endings by which a copy is known.
        arg_names: The name of each argument.
    """

    def __init__(
        self,
        leaves: Sequence[LeafFacts],
        tails: dict[int, Sequence[tuple[str, ...]]],
        arg_names: Sequence[str],
    ) -> None:
        self._leaves = leaves
        self._arg_names = arg_names
        self._owners: dict[Ending, list[int]] = {}
        for index, endings in tails.items():
            for ending in dict.fromkeys(endings):
                key = (ending, leaves[index].shape)
                self._owners.setdefault(key, []).append(index)

    def owner_of(self, leaf: LeafFacts, *, allow_bare: bool) -> int | None:
        """Returns the index of the parameter with the longest common ending.

        Args:
            leaf: A leaf that is not a parameter.
            allow_bare: Whether the same shape is enough to mirror a parameter
                that is a whole argument, and so has no path to compare.
        """
        for start in range(len(leaf.keys) + 1):
            is_bare = start == len(leaf.keys)
            if is_bare and not (allow_bare and leaf.shape and is_inexact(leaf.dtype)):
                return None
            owners = self._owners.get((leaf.keys[start:], leaf.shape))
            if owners:
                return self._closest(leaf, start, owners)
        return None

    def _closest(self, leaf: LeafFacts, start: int, owners: list[int]) -> int:
        """Prefers the owner whose place is named most alike: `gen_opt`, `gen`."""
        if len(owners) == 1:
            return owners[0]
        own = self._place_words(leaf, start)
        num_tail = len(leaf.keys) - start

        def likeness(index: int) -> int:
            owner = self._leaves[index]
            return len(own & self._place_words(owner, len(owner.keys) - num_tail))

        return max(owners, key=likeness)  # the first of equals

    def _place_words(self, leaf: LeafFacts, start: int) -> frozenset[str]:
        names = (self._arg_names[leaf.arg], *leaf.keys[:start])
        return frozenset(word for name in names for word in words(name))


def find_mirror_trees(leaves: Sequence[LeafFacts]) -> frozenset[int]:
    """Finds trees that repeat another tree deeper down, as optimizers do.

    The last resort for states whose names tell nothing. The trees are the
    arguments or, in a single argument, its fields. A tree counts only if each of
    its arrays repeats one of the same other tree, under a longer path.

    Args:
        leaves: Inexact leaves with at least one dim.

    Returns:
        Positions in `leaves` of the leaves of such trees.
    """
    trees = _trees(leaves)
    if not 2 <= len(trees) <= _MAX_TREES:
        return frozenset()
    num_drop = 0 if len({leaf.arg for leaf in leaves}) > 1 else 1
    holders: dict[Ending, set[str]] = {}
    for name, members in trees.items():
        for position in members:
            leaf = leaves[position]
            holders.setdefault((leaf.keys[num_drop:], leaf.shape), set()).add(name)
    found: set[int] = set()
    for name, members in trees.items():
        repeated: set[str] = set(trees) - {name}
        for position in members:
            leaf = leaves[position]
            matches: set[str] = set()
            for start in range(num_drop + 1, len(leaf.keys) + 1):
                matches |= holders.get((leaf.keys[start:], leaf.shape), set())
            repeated &= matches
        if repeated:
            found.update(members)
    return frozenset(found)


def _trees(leaves: Sequence[LeafFacts]) -> dict[str, list[int]]:
    """Groups leaves by argument or, in a single one, by its field."""
    is_single = len({leaf.arg for leaf in leaves}) == 1
    trees: dict[str, list[int]] = {}
    for position, leaf in enumerate(leaves):
        name = str(leaf.arg)
        if is_single:
            if not leaf.keys:
                return {}
            # Only the fields of a record or tuple: dict keys may be layers.
            is_field = leaf.keys[0].isdigit() or bool(leaf.attrs and leaf.attrs[0])
            if not is_field:
                return {}
            name = leaf.keys[0]
        trees.setdefault(name, []).append(position)
    return trees
