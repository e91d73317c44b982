"""The leaves of a state as a checkpoint names them.

Lives here: the path of each leaf, which leaves are the same array, and the manifest
of both. May import: plan, runtime, `manifest.py`. Read next: `compare.py`.
"""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import jax
from jax.sharding import NamedSharding

from jzero.checkpoint.manifest import Manifest, SavedLeaf, join_path
from jzero.ir.specs import to_dims
from jzero.plan.leaves import is_key_dtype
from jzero.runtime.states import StateView

__all__ = ["describe_leaves", "find_aliases", "make_manifest"]


def describe_leaves(view: StateView) -> tuple[SavedLeaf, ...]:
    """Describes every leaf of a state, in flattening order.

    Where a leaf that is there lies tells its spec and memory, else the plan does.
    Leaves whose keys read alike (the dict keys 0 and "0") are told apart by a "~2",
    which no key can contain: "~" is written "~0".
    """
    seen: dict[str, int] = {}
    described = []
    for leaf, facts, plan in zip(view.leaves, view.facts, view.plan.state, strict=True):
        path = join_path(facts.keys)
        seen[path] = seen.get(path, 0) + 1
        if seen[path] > 1:
            path = f"{path}~{seen[path]}"
        spec, memory_kind = plan.spec, plan.memory_kind
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding):
            spec = sharding.spec
            memory_kind = sharding.memory_kind or memory_kind
        described.append(
            SavedLeaf(
                path=path,
                keys=facts.keys,
                shape=facts.shape,
                dtype=str(facts.dtype),
                role=plan.role,
                spec=to_dims(spec, len(facts.shape)),
                memory_kind=memory_kind,
                key_impl=key_impl(facts.dtype),
            )
        )
    return tuple(described)


def find_aliases(
    leaves: Sequence[Any], described: Sequence[SavedLeaf]
) -> dict[str, str]:
    """Finds leaves that are one array object at several paths.

    Returns:
        Path of each further one -> path of the first.
    """
    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for leaf, saved in zip(leaves, described, strict=True):
        if isinstance(leaf, jax.Array):
            owner = first.setdefault(id(leaf), saved.path)
            if owner != saved.path:
                aliases[saved.path] = owner
    return aliases


def key_impl(dtype: Any) -> str | None:
    """Returns the name of the generator of typed random keys; None of other dtypes."""
    if not is_key_dtype(dtype):
        return None
    found: list[str] = []

    def look(keys: jax.Array) -> jax.Array:
        found.append(str(jax.random.key_impl(keys)))
        return keys

    # Only arrays and tracers are asked; a shape alone is refused.
    jax.eval_shape(look, jax.ShapeDtypeStruct((), dtype))
    return found[0]


def make_manifest(
    step: int,
    view: StateView,
    leaves: tuple[SavedLeaf, ...],
    aliases: Mapping[str, str],
) -> Manifest:
    """Writes down what a step is about to hold."""
    return Manifest(
        step=step,
        versions={
            "jzero": _version("jzero"),
            "jax": jax.__version__,
            "jaxlib": _version("jaxlib"),
            "orbax": _version("orbax-checkpoint"),
            "python": platform.python_version(),
        },
        stage=view.plan.stage,
        mesh_axes=dict(view.plan.axis_sizes),
        num_devices=view.mesh.size,
        num_processes=jax.process_count(),
        time_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        leaves=leaves,
        aliases=dict(aliases),
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
