"""Finding the state: which arguments a step returns anew.

Lives here: `match_state`. An argument is state if the step returns something of
the same tree, shapes and dtypes; arguments of equal structure are paired in
order. May import: errors. Read next: `program.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from jzero.errors import StateError, format_problem
from jzero.plan.leaves import is_key_dtype

_MAX_DEPTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A subtree of what the step returns.

    Attributes:
      path: how to reach it, for messages.
      keys: how to reach it.
      tree: the subtree, of `ShapeDtypeStruct`s.
      start: flat index of its first leaf among the outputs.
    """

    path: str
    keys: tuple[Any, ...]
    tree: Any
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The state arguments of a step.

    Attributes:
      args: index (among the dynamic arguments) of each state argument, ascending.
      nodes: the output that replaces each.
      notes: choices worth showing in the plan.
    """

    args: tuple[int, ...]
    nodes: tuple[Node, ...]
    notes: tuple[str, ...] = ()


def match_state(
    names: Sequence[str],
    args: Sequence[Any],
    out: Any,
    *,
    chosen: Sequence[int] | None = None,
    derived: Sequence[int | None] | None = None,
) -> Matched:
    """Finds which arguments are state and which outputs replace them.

    Args:
      names: name of each dynamic argument.
      args: the arguments, pytrees of `ShapeDtypeStruct`s.
      out: what the step returns, likewise.
      chosen: indices that the user declared to be state.
      derived: per flat output, the flat input from which it follows element by
        element, as new parameters do from the old.

    Returns:
      The matched arguments and outputs.

    Raises:
      StateError: if nothing matches, if the state changes structure, shape or
        dtype in the step, or if it cannot be told what is state.
    """
    nodes = list(_nodes(out))
    signatures = [_signature(a) for a in args]
    by_signature: dict[Any, list[Node]] = {}
    for node in nodes:
        by_signature.setdefault(_signature(node.tree), []).append(node)
    candidates = [
        i
        for i, s in enumerate(signatures)
        if jax.tree.leaves(args[i]) and s in by_signature
    ]
    if chosen is not None:
        for i in chosen:
            if i not in candidates:
                raise StateError(_why_not(names, args, nodes, i))
        candidates = sorted(chosen)
    else:
        candidates = _drop_data(names, args, candidates, by_signature, signatures)
    pairs: list[tuple[int, Node]] = []
    notes: list[str] = []
    # Larger arguments first: the moments inside of an optimizer state look like
    # parameters, but go with the state that holds them.
    groups = dict.fromkeys(signatures[i] for i in candidates)
    for signature in sorted(groups, key=lambda s: _rank(s, by_signature[s])):
        same_args = [i for i in candidates if signatures[i] == signature]
        likely = [
            n
            for n in by_signature[signature]
            if derived is not None
            and any(_follows(n, args, i, derived) for i in same_args)
        ]
        same_nodes = _free(by_signature[signature], [n for _, n in pairs], likely)
        if not same_nodes:
            continue  # what it resembled belongs to another argument
        if len(same_args) > len(same_nodes):
            raise StateError(_ambiguous(names, same_args, same_nodes))
        chosen_nodes = same_nodes[: len(same_args)]
        if len(same_nodes) > len(same_args):
            kept = ", ".join(n.path for n in chosen_nodes)
            notes.append(
                f"{', '.join(names[i] for i in same_args)}: {len(same_nodes)} outputs "
                f"have this structure; the first ({kept}) is the new state"
            )
        in_order = sorted(chosen_nodes, key=lambda n: n.start)
        pairs += zip(same_args, in_order, strict=True)
    pairs.sort(key=lambda pair: pair[0])
    if chosen is None:
        _reject_near_misses(names, args, nodes, pairs)
    if not pairs:
        raise StateError(_no_state(names, args, out))
    return Matched(
        args=tuple(i for i, _ in pairs),
        nodes=tuple(n for _, n in pairs),
        notes=tuple(notes),
    )


def _nodes(out: Any) -> Iterator[Node]:
    def walk(
        tree: Any, keys: tuple[Any, ...], start: int, depth: int
    ) -> Iterator[Node]:
        num_leaves = len(jax.tree.leaves(tree))
        if not num_leaves:
            return
        yield Node(path="output" + keystr(keys), keys=keys, tree=tree, start=start)
        if depth == _MAX_DEPTH:
            return
        children, _ = tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
        if len(children) == 1 and children[0][1] is tree:
            return
        for more, child in children:
            yield from walk(child, (*keys, *more), start, depth + 1)
            start += len(jax.tree.leaves(child))

    yield from walk(out, (), 0, 0)


def _follows(
    node: Node, args: Sequence[Any], arg: int, derived: Sequence[int | None]
) -> bool:
    """Says whether some leaf of a node follows from the same leaf of an argument."""
    start = sum(len(jax.tree.leaves(a)) for a in args[:arg])
    num_leaves = len(jax.tree.leaves(args[arg]))
    return any(derived[node.start + k] == start + k for k in range(num_leaves))


def _rank(signature: Any, nodes: Sequence[Node]) -> tuple[int, int]:
    return -len(signature[1]), min(len(n.keys) for n in nodes)


def _free(
    nodes: Sequence[Node],
    taken: Sequence[Node],
    likely: Sequence[Node] = (),
    *,
    is_nested_too: bool = False,
) -> list[Node]:
    """Nodes that overlap none taken; likely ones, and the topmost, first.

    Nor do they overlap each other, unless `is_nested_too`.
    """
    spans = [(n.start, n.start + len(jax.tree.leaves(n.tree))) for n in taken]
    kept: list[Node] = []

    def order(node: Node) -> tuple[bool, int, int]:
        return all(node is not n for n in likely), len(node.keys), node.start

    for node in sorted(nodes, key=order):
        end = node.start + len(jax.tree.leaves(node.tree))
        if all(end <= start or node.start >= stop for start, stop in spans):
            kept.append(node)
            if not is_nested_too:
                spans.append((node.start, end))
    return kept


def _signature(tree: Any) -> Any:
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, tuple((tuple(x.shape), str(x.dtype)) for x in leaves)


def is_key_or_scalar(leaf: Any) -> bool:
    """Says whether a leaf is a scalar or a random key, never a batch."""
    if not leaf.shape or is_key_dtype(leaf.dtype):
        return True
    return leaf.dtype == np.uint32 and leaf.shape in ((2,), (4,))


def _is_bare_data(tree: Any) -> bool:
    leaves = jax.tree.leaves(tree)
    return len(leaves) == 1 and leaves[0] is tree and not is_key_or_scalar(leaves[0])


def _is_bare_number(tree: Any) -> bool:
    leaves = jax.tree.leaves(tree)
    is_bare = len(leaves) == 1 and leaves[0] is tree
    return is_bare and not tree.shape and not is_key_dtype(tree.dtype)


def _drop_data(
    names: Sequence[str],
    args: Sequence[Any],
    candidates: Sequence[int],
    by_signature: Mapping[Any, Sequence[Node]],
    signatures: Sequence[Any],
) -> list[int]:
    """Decides about bare arrays that some output resembles."""
    # A learning rate and a loss are both scalars; neither is the other's state.
    candidates = [i for i in candidates if not _is_bare_number(args[i])]
    bare = [i for i in candidates if _is_bare_data(args[i])]
    # A vector of labels may have the shape of some bias inside of the new state.
    trees = [
        node
        for i in candidates
        if i not in bare
        for node in by_signature[signatures[i]]
    ]
    inside = [i for i in bare if not _free(by_signature[signatures[i]], trees)]
    candidates = [i for i in candidates if i not in inside]
    bare = [i for i in bare if i not in inside]
    kept = [i for i in candidates if i not in bare]
    has_tree = any(
        not is_key_or_scalar(x) for i in kept for x in jax.tree.leaves(args[i])
    )
    if not bare or (not has_tree and len(bare) == 1):
        return sorted([*kept, *bare])
    rows = [(names[i], _summary(args[i])) for i in candidates]
    raise StateError(
        format_problem(
            "cannot tell state from data: these arguments have the structure of an "
            "output",
            rows,
            "name the state arguments: shard_train_step(..., state_argnums=(0,))",
        )
    )


def _leaf_table(tree: Any) -> dict[str, Any]:
    return {keystr(k): v for k, v in tree_flatten_with_path(tree)[0]}


def _differences(old: Any, new: Any) -> list[tuple[str, str]]:
    """Lists how `new` departs from `old`, leaf by leaf."""
    olds, news = _leaf_table(old), _leaf_table(new)
    rows = []
    for path, leaf in olds.items():
        other = news.get(path)
        if other is None:
            rows.append((path, f"{_text(leaf)} is missing from the new state"))
        elif (leaf.shape, leaf.dtype) != (other.shape, other.dtype):
            rows.append((path, f"{_text(leaf)} becomes {_text(other)}"))
    rows += [
        (path, f"{_text(leaf)} is new in the output")
        for path, leaf in news.items()
        if path not in olds
    ]
    return rows


def _text(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _nearest(tree: Any, nodes: Sequence[Node]) -> tuple[float, Node | None]:
    """Returns how alike the most similar output is (0 to 1), and that output."""
    olds = _leaf_table(tree)
    best: tuple[float, Node | None] = (0.0, None)
    for node in nodes:
        news = _leaf_table(node.tree)
        same = sum(1 for p, x in olds.items() if p in news and news[p].shape == x.shape)
        score = same / max(len(olds), len(news), 1)
        if score > best[0]:
            best = (score, node)
    return best


def _reject_near_misses(
    names: Sequence[str],
    args: Sequence[Any],
    nodes: Sequence[Node],
    pairs: Sequence[tuple[int, Node]],
) -> None:
    """A state whose leaf changes must not be taken for a batch."""
    matched = {i for i, _ in pairs}
    free = _free(nodes, [n for _, n in pairs], is_nested_too=True)
    for i, tree in enumerate(args):
        leaves = jax.tree.leaves(tree)
        is_single = len(leaves) == 1 and (bool(matched) or is_key_or_scalar(leaves[0]))
        if i in matched or not leaves or is_single:
            continue
        score, node = _nearest(tree, free)
        is_same_type = node is not None and type(node.tree) is type(tree)
        if node is not None and is_same_type and score >= 0.5:
            raise StateError(
                format_problem(
                    f"argument {names[i]!r} comes back changed as {node.path}",
                    [(names[i] + p, d) for p, d in _differences(tree, node.tree)],
                    "return a state of the same structure, shapes and dtypes as it "
                    "came in (cast the new value back, keep every leaf)",
                )
            )


def _why_not(
    names: Sequence[str], args: Sequence[Any], nodes: Sequence[Node], i: int
) -> str:
    _, node = _nearest(args[i], nodes)
    rows = (
        []
        if node is None
        else [(names[i] + p, d) for p, d in _differences(args[i], node.tree)]
    )
    return format_problem(
        f"state_argnums names argument {names[i]!r}, but no output has its structure",
        rows,
        "return its new value with the same structure, shapes and dtypes",
    )


def _ambiguous(names: Sequence[str], args: Sequence[int], nodes: Sequence[Node]) -> str:
    return format_problem(
        f"cannot tell which argument is state: {len(args)} arguments have one "
        f"structure and the step returns {len(nodes)} of it",
        [*((names[i], "argument") for i in args), *((n.path, "output") for n in nodes)],
        f"name the state arguments: shard_train_step(..., state_argnums=({args[0]},))",
    )


def _no_state(names: Sequence[str], args: Sequence[Any], out: Any) -> str:
    rows = [(n, _summary(a)) for n, a in zip(names, args, strict=True)]
    rows.append(("output", _summary(out)))
    return format_problem(
        "the step function returns no state: no output has the structure of an "
        "argument",
        rows,
        "return the new state with the structure, shapes and dtypes of the old, as in "
        "`def train_step(state, batch): ...; return new_state, metrics`",
    )


def _summary(tree: Any) -> str:
    leaves = jax.tree.leaves(tree)
    if len(leaves) == 1 and leaves[0] is tree:
        return _text(tree)
    return f"{type(tree).__name__} of {len(leaves)} arrays"
