"""Meshes: the default one, and the Auto twin of any other.

Rewritten programs run with Auto axes, where the partitioner follows sharding
constraints; `jax.make_mesh` gives Explicit axes, under which a step function
written for one device can fail to trace. May import: errors. Read next:
`placement.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from jzero.errors import MeshError


def default_mesh(axis: str) -> Mesh:
    """Returns a mesh with one axis over all devices of all processes."""
    return Mesh(np.array(jax.devices()), (axis,), axis_types=(AxisType.Auto,))


def auto_mesh(mesh: Mesh) -> Mesh:
    """Returns the same devices and axis names, with every axis Auto.

    Raises:
      MeshError: if `mesh` is not a `jax.sharding.Mesh`, or has Manual axes.
    """
    if not isinstance(mesh, Mesh):
        raise MeshError(
            f"mesh must be a jax.sharding.Mesh, got {type(mesh).__name__}.\n"
            "Remedy: pass jax.make_mesh((num_devices,), ('data',)), or leave mesh out."
        )
    types = tuple(mesh.axis_types)
    if any(t == AxisType.Manual for t in types):
        raise MeshError(
            f"mesh axes {mesh.axis_names} are {types}: a training step cannot be "
            "partitioned over Manual axes.\n"
            "Remedy: pass a mesh with Auto or Explicit axes."
        )
    if all(t == AxisType.Auto for t in types):
        return mesh
    auto = (AxisType.Auto,) * len(types)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=auto)


def axis_sizes(mesh: Mesh) -> tuple[tuple[str, int], ...]:
    """Returns (name, size) of every axis in mesh order."""
    return tuple((str(n), int(s)) for n, s in mesh.shape.items())


@contextlib.contextmanager
def tracing_context(mesh: Mesh) -> Iterator[None]:
    """Traces the user's function as if the mesh they set had Auto axes.

    Without a mesh in context nothing changes: bare specs fail as they would
    under `jax.jit`.
    """
    current = jax.sharding.get_abstract_mesh()
    if current.empty:
        yield
        return
    auto = AbstractMesh(
        tuple(current.axis_sizes),
        tuple(current.axis_names),
        axis_types=(AxisType.Auto,) * len(current.axis_names),
    )
    same = dict(mesh.shape) == dict(current.shape)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh if same else auto):
        yield
