"""Leaves are named apart, whatever the keys, and ties are found."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jzero.checkpoint.contents import describe_leaves, find_aliases, make_manifest
from jzero.checkpoint.manifest import Manifest
from tests.jzero.checkpoint.small import begin, create, make_step


def paths(state: Any) -> list[str]:
    return [leaf.path for leaf in describe_leaves(make_step().view(state))]


def test_leaves_of_a_state() -> None:
    step = make_step()
    leaves = {x.path: x for x in describe_leaves(step.view(begin(step)))}
    up = leaves["params/up"]
    assert (up.role, up.shape, up.dtype) == ("parameter", (24, 16), "float32")
    assert up.spec == ("data", None) and up.memory_kind == "device"
    assert leaves["key"].dtype == "key<fry>"
    assert leaves["key"].key_impl == str(jax.random.key_impl(jax.random.key(0)))
    assert leaves["empty"].shape == (0, 3)
    mu = next(x for path, x in leaves.items() if path.endswith("mu/up"))
    assert mu.role == "optimizer" and mu.spec == up.spec
    planned = describe_leaves(step.birth(create).view)
    assert planned == tuple(leaves.values())


def test_several_arguments_are_named_by_the_step() -> None:
    step = make_step()
    assert describe_leaves(step.view((create(), jnp.ones(8))))[-1].path == "batch"


def test_keys_that_read_alike_are_told_apart() -> None:
    w = jnp.ones((8,))
    assert paths({"a/b": w, "a": {"b": w + 1}}) == ["a/b", "a~1b"]
    found = paths([{"x": w}, {"x": w + 1}])
    assert found == ["0/x", "1/x"]
    assert paths(w) == [""]


def test_only_the_same_array_is_an_alias() -> None:
    step = make_step()
    w = jnp.ones((8,))
    state = {"a": w, "b": {"c": w}, "d": jnp.ones((8,)), "n": np.ones(8), "m": 1}
    view = step.view(state)
    assert find_aliases(view.leaves, describe_leaves(view)) == {"b/c": "a"}


def test_the_manifest_says_what_wrote_it() -> None:
    step = make_step(4, 2)
    view = step.view(begin(step))
    manifest = make_manifest(3, view, describe_leaves(view), {})
    assert (manifest.step, manifest.stage) == (3, 2)
    assert manifest.mesh_axes == {"data": 4} and manifest.num_devices == 4
    assert manifest.versions["jax"] == jax.__version__
    assert set(manifest.versions) == {"jzero", "jax", "jaxlib", "orbax", "python"}
    assert Manifest.from_json(manifest.to_json()) == manifest
