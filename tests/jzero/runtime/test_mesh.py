"""Every mesh becomes one with Auto axes, or is refused."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import AxisType

from jzero.errors import MeshError
from jzero.runtime.mesh import auto_mesh, axis_sizes, default_mesh, tracing_context


def test_explicit_becomes_auto_over_the_same_devices() -> None:
    explicit = jax.make_mesh((4, 2), ("data", "model"))
    mesh = auto_mesh(explicit)
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert (mesh.devices == explicit.devices).all()
    assert axis_sizes(mesh) == (("data", 4), ("model", 2))
    assert auto_mesh(mesh) is mesh


def test_default_mesh_is_all_devices() -> None:
    assert axis_sizes(default_mesh("data")) == (("data", 8),)


def test_other_things_are_refused() -> None:
    with pytest.raises(MeshError, match="list"):
        auto_mesh([1, 2])  # type: ignore
    manual = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Manual,))
    with pytest.raises(MeshError, match="Manual"):
        auto_mesh(manual)


def test_tracing_sees_auto_axes_whatever_the_context() -> None:
    explicit = jax.make_mesh((8,), ("data",))
    with tracing_context(auto_mesh(explicit)):
        assert jax.sharding.get_abstract_mesh().empty
    with jax.set_mesh(explicit), tracing_context(auto_mesh(explicit)):
        seen = jax.sharding.get_abstract_mesh()
        assert set(seen.axis_types) == {AxisType.Auto}
