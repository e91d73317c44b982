"""What a fused update is, written into the program that was traced of it.

Lives here: `UpdateSpec`, everything about an update but its arrays, and a primitive
that does nothing but carry one. A program that holds it can be rewritten to run the
update by another backend, long after the function that asked for it has returned. May
import: `rules.py`, `update.py`. Read next: `fused.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from pallas_kernels.rules import Rule
from pallas_kernels.update import LeafFormat

__all__ = ["MARK", "UpdateSpec", "mark", "read_spec"]

MARK = "fused_update_spec"
"""The name of the primitive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSpec:
    """An update of many leaves, without their arrays.

    Attributes:
        rules: The optimizer of each leaf.
        forms: How each leaf is stored.
        backend: By what the update runs.
        structure: The tree of what `fused.run_update` takes: states, scalars, seed
            and step.
        kinds: Shape and dtype of each of its leaves.
    """

    rules: tuple[Rule, ...]
    forms: tuple[LeafFormat, ...]
    backend: str
    structure: Any
    kinds: tuple[tuple[tuple[int, ...], str], ...]

    @property
    def asks_for_deltas(self) -> bool:
        """Whether every leaf wants its delta, which no kernel computes."""
        return all(form.returns_delta for form in self.forms)


_mark_p = Primitive(MARK)


@_mark_p.def_impl
def _same(value: Any, *, spec: UpdateSpec) -> Any:
    return value


@_mark_p.def_abstract_eval
def _same_kind(value: Any, *, spec: UpdateSpec) -> Any:
    return value


def _jvp(primals: Any, tangents: Any, *, spec: UpdateSpec) -> Any:
    return mark(primals[0], spec), tangents[0]


def _batch(values: Any, dims: Any, *, spec: UpdateSpec) -> Any:
    return mark(values[0], spec), dims[0]


ad.primitive_jvps[_mark_p] = _jvp
batching.primitive_batchers[_mark_p] = _batch
mlir.register_lowering(_mark_p, lambda _, value, **params: [value])


def mark(value: Any, spec: UpdateSpec) -> Any:
    """Returns an array as it is, and leaves the spec in the program.

    Example:
        >>> import jax
        >>> spec = UpdateSpec(
        ...     rules=(), forms=(), backend="auto", structure=None, kinds=()
        ... )
        >>> program = jax.make_jaxpr(lambda x: mark(x, spec))(1.0)
        >>> read_spec(program.eqns) == spec
        True
    """
    return _mark_p.bind(value, spec=spec)


def read_spec(eqns: Iterable[Any]) -> UpdateSpec | None:
    """Returns the spec that one of some equations carries, or None."""
    for eqn in eqns:
        if eqn.primitive.name == MARK:
            return eqn.params["spec"]
    return None
