"""What a checkpoint holds against what a state asks for, before anything is read.

The store stops at the first leaf that is missing, fills up or cuts off other shapes
and casts other dtypes in silence; so all leaves are compared here first. Lives here:
`compare`, `RestoreReport`. May import: `manifest.py`, errors. Read next: `reading.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp

from jzero.checkpoint.manifest import Manifest, SavedLeaf
from jzero.errors import MismatchError, StateError, format_problem

__all__ = ["RestoreReport", "What", "compare", "make_filter"]

# Which leaves to restore; a function is asked about each path.
What = Literal["all", "params", "optimizer"] | Callable[[str], bool]

_NAMES = ("all", "params", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """How a checkpoint fits a state.

    Attributes:
        step: The step that was looked at.
        restored: Paths of the leaves that are read from it.
        cast: (path, "float32 -> bfloat16") of those that are cast.
        missing: Paths that the state has and the checkpoint has not.
        unexpected: Paths that the checkpoint has and the state has not.
        reshaped: (path, "(4, 2) -> (4, 3)") where shapes differ.
        retyped: (path, "int32 -> float32") where dtypes differ and may not be cast.
    """

    step: int
    restored: tuple[str, ...]
    cast: tuple[tuple[str, str], ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    reshaped: tuple[tuple[str, str], ...] = ()
    retyped: tuple[tuple[str, str], ...] = ()

    @property
    def fits(self) -> bool:
        """Whether everything asked for is there, and nothing else."""
        return not (self.missing or self.unexpected or self.reshaped or self.retyped)

    @property
    def rows(self) -> list[tuple[str, str]]:
        """(path, what is wrong) of every leaf that does not fit."""
        return [
            *((path, "is not in the checkpoint") for path in self.missing),
            *((path, "is not in the state") for path in self.unexpected),
            *((path, f"has another shape: {text}") for path, text in self.reshaped),
            *((path, f"has another dtype: {text}") for path, text in self.retyped),
        ]

    def __str__(self) -> str:
        """Says what was restored, and lists what was not."""
        return format_problem(
            f"step {self.step}: {len(self.restored)} leaves restored, "
            f"{len(self.rows)} do not fit",
            self.rows,
        )


def make_filter(leaves: Sequence[SavedLeaf], what: What) -> Callable[[str], bool]:
    """Returns a function that says whether `what` covers a path.

    "optimizer" covers optimizer state and what lies beside it in the same fields of
    the state, such as counters, unless these hold parameters, too.

    Raises:
        StateError: There is no such choice.
    """
    if callable(what):
        return what
    if what not in _NAMES:
        raise StateError(
            f"what={what!r} is not known.\n"
            f"Remedy: pass one of {', '.join(map(repr, _NAMES))}, or a function of a "
            "leaf's path."
        )
    if what == "all":
        return lambda path: True
    role = "parameter" if what == "params" else "optimizer"
    chosen = {leaf.path for leaf in leaves if leaf.role == role}
    if what == "optimizer":
        with_params = {f for x in leaves if x.role == "parameter" for f in _fields(x)}
        fields = {f for x in leaves if x.role == role for f in _fields(x)}
        fields -= with_params
        chosen |= {x.path for x in leaves if not fields.isdisjoint(_fields(x))}
    return chosen.__contains__


def compare(
    manifest: Manifest,
    wanted: Sequence[SavedLeaf],
    *,
    what: What = "all",
    cast: bool = False,
) -> RestoreReport:
    """Compares a checkpoint with a state, leaf by leaf.

    Args:
        manifest: What the checkpoint holds.
        wanted: The leaves of the state, as `describe_leaves` gives them.
        what: Which leaves count.
        cast: Whether another dtype may be cast; never between random keys and
            numbers.
    """
    saved = {leaf.path: leaf for leaf in manifest.leaves}
    is_wanted, is_saved = make_filter(wanted, what), make_filter(manifest.leaves, what)
    restored, casts, missing, reshaped, retyped = [], [], [], [], []
    for leaf in wanted:
        if not is_wanted(leaf.path):
            continue
        old = saved.get(leaf.path)
        if old is None:
            missing.append(leaf.path)
        elif old.shape != leaf.shape:
            reshaped.append((leaf.path, f"{old.shape} -> {leaf.shape}"))
        elif old.dtype == leaf.dtype:
            restored.append(leaf.path)
        elif cast and not (old.is_key or leaf.is_key):
            casts.append((leaf.path, f"{old.dtype} -> {leaf.dtype}"))
            restored.append(leaf.path)
        else:
            retyped.append((leaf.path, f"{old.dtype} -> {leaf.dtype}"))
    asked = {leaf.path for leaf in wanted}
    return RestoreReport(
        step=manifest.step,
        restored=tuple(restored),
        cast=tuple(casts),
        missing=tuple(missing),
        unexpected=tuple(
            leaf.path
            for leaf in manifest.leaves
            if leaf.path not in asked and is_saved(leaf.path)
        ),
        reshaped=tuple(reshaped),
        retyped=tuple(retyped),
    )


def raise_mismatch(report: RestoreReport, where: str) -> None:
    """Raises what is wrong, with every leaf, if anything is.

    Raises:
        MismatchError: Leaves are missing, unexpected, of other shapes or dtypes.
    """
    if report.fits:
        return
    remedies = []
    if any(_is_castable(text) for _, text in report.retyped):
        remedies.append("pass cast=True to cast dtypes")
    remedies.append("pass strict=False to restore the leaves that fit")
    raise MismatchError(
        format_problem(
            f"{where} does not hold the state asked for: of its leaves, "
            f"{len(report.rows)} do not fit",
            report.rows,
            f"build the state that was saved, or {', '.join(remedies)}.",
        )
    )


def _is_castable(text: str) -> bool:
    def is_number(name: str) -> bool:
        try:
            jnp.dtype(name)
        except TypeError:
            return False
        return True

    return all(map(is_number, text.split(" -> ")))


def _fields(leaf: SavedLeaf) -> Iterable[str]:
    return leaf.keys[:1]
