"""Restoring the parts of a step: the leaves that fit, and the position of the data.

Lives here: `restore_leaves`, `fill_up`, `restore_data`. May import: `reading.py`,
`iterators.py`. Read next: `checkpointer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from jzero.checkpoint.compare import RestoreReport
from jzero.checkpoint.contents import describe_leaves
from jzero.checkpoint.handlers import data_file, read_records
from jzero.checkpoint.iterators import pick_state
from jzero.checkpoint.manifest import DATA_ITEM, STATE_ITEM, Manifest
from jzero.checkpoint.reading import Target, read_leaves
from jzero.checkpoint.steps import SavedStep
from jzero.errors import CheckpointError
from jzero.runtime.birth import Birth
from jzero.runtime.states import StateView

__all__ = ["fill_up", "restore_data", "restore_leaves"]


def restore_leaves(
    found: SavedStep,
    manifest: Manifest,
    view: StateView,
    report: RestoreReport,
) -> dict[str, jax.Array]:
    """Reads the leaves that fit, each to where the plan of the state wants it.

    Args:
        found: The step.
        manifest: What it holds.
        view: The state it is restored into.
        report: Which of the leaves fit.

    Returns:
        Arrays by path.

    Raises:
        CheckpointError: The store cannot be read.
    """
    saved = {leaf.path: leaf for leaf in manifest.leaves}
    chosen = set(report.restored)
    wanted = zip(describe_leaves(view), view.facts, view.shardings, strict=True)
    targets = [
        Target(saved=saved[leaf.path], dtype=facts.dtype, sharding=sharding)
        for leaf, facts, sharding in wanted
        if leaf.path in chosen
    ]

    try:
        arrays = read_leaves(targets, manifest, found.folder / STATE_ITEM)
    except Exception as error:
        raise CheckpointError(
            f"cannot read {found.folder}: {error}\n"
            f"Remedy: `jzero ckpt verify {found.folder.parent}` finds files that have "
            "changed; restore another step."
        ) from error
    paths = [target.saved.path for target in targets]
    return dict(zip(paths, arrays, strict=True))


def fill_up(
    view: StateView, read: Mapping[str, jax.Array], birth: Birth | None
) -> list[Any]:
    """Puts leaves that were not read beside those that were, in flattening order.

    Args:
        view: The state, with the leaves that it has.
        read: What `restore_leaves` returned.
        birth: Creates the leaves that were not read; None takes those of the view.
    """
    paths = [saved.path for saved in describe_leaves(view)]
    leaves: list[Any] = [
        read.get(path, leaf) for path, leaf in zip(paths, view.leaves, strict=True)
    ]
    rest = [i for i, path in enumerate(paths) if path not in read]
    if birth is not None and rest:
        for i, leaf in zip(rest, birth.create(rest), strict=True):
            leaves[i] = leaf
    return leaves


def restore_data(found: SavedStep, data: Any) -> None:
    """Sets an iterator to where it was when the step was saved; None does nothing.

    Raises:
        CheckpointError: The step has no such position, or not one for this process.
    """
    if data is None:
        return
    if not (found.folder / DATA_ITEM).exists():
        raise CheckpointError(
            f"{found.folder} was saved without data=.\n"
            "Remedy: restore without data=, and set the iterator by the step's number."
        )
    texts = read_records(found.folder / DATA_ITEM)
    num_processes = jax.process_count()
    own_name = data_file(jax.process_index(), num_processes)
    data.set_state(pick_state(texts, own_name, num_processes))
