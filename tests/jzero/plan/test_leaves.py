"""Facts of leaves: paths, components, shapes, dtypes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import PartitionSpec as P

from jzero.errors import InternalError, StateError
from jzero.plan.leaves import (
    describe_tree,
    describe_type,
    is_extended_dtype,
    is_inexact,
    is_key_dtype,
)
from tests.jzero.plan.states import NormMlp, describe, linen_state


def test_paths_and_components_of_a_train_state() -> None:
    facts = {leaf.path: leaf for leaf in describe(state=linen_state(optax.adam(1e-3)))}
    leaf = facts["state.params['Dense_0']['kernel']"]
    assert leaf.keys == ("params", "Dense_0", "kernel")
    assert leaf.attrs == (True, False, False)
    assert (leaf.shape, leaf.size_elems, leaf.size_bytes) == ((8, 4), 32, 128)
    moment = facts["state.opt_state[0].mu['Dense_0']['kernel']"]
    assert moment.keys == ("opt_state", "0", "mu", "Dense_0", "kernel")
    assert moment.attrs == (True, False, True, False, False)
    assert facts["state.key"].size_bytes == 8


def test_boxes_leave_no_trace_in_the_components() -> None:
    leaves = describe(model=nnx.state(NormMlp(nnx.Rngs(0))))
    assert ("dense", "kernel") in {leaf.keys for leaf in leaves}
    assert any(leaf.path.endswith("['kernel'].value") for leaf in leaves)
    boxed = {"k": nn.Partitioned(jnp.ones((2, 2)), names=("a", None))}
    assert describe(p=boxed)[0].keys == ("k",)
    # A user's own dict key of that name stays.
    assert describe(p={"value": jnp.ones(2)})[0].keys == ("value",)


@pytest.mark.parametrize(
    "value",
    [
        True,
        3,
        2.5,
        1j,
        np.float32(1),
        np.float64(1),
        np.ones(3),
        np.ones((2, 0), np.int8),
        jnp.ones((2, 3), jnp.bfloat16),
        jnp.ones(4, jnp.float8_e4m3fn),
        jax.random.key(0),
        jax.random.PRNGKey(0),
    ],
    ids=lambda value: f"{type(value).__name__}-{np.shape(value)}",
)
def test_shape_and_dtype_are_what_jit_sees(value: Any) -> None:
    (leaf,) = describe_tree(value, arg=2, name="x")
    seen = jax.eval_shape(lambda x: x, value)
    assert (leaf.shape, leaf.dtype) == (seen.shape, seen.dtype)
    assert (leaf.path, leaf.keys, leaf.arg) == ("x", (), 2)
    hash(leaf)


def test_abstract_leaves() -> None:
    struct = jax.ShapeDtypeStruct((4, 2), "float64")
    (leaf,) = describe_tree(struct, arg=0, name="x")
    assert leaf.dtype == jnp.zeros(0, float).dtype
    key = jax.eval_shape(lambda: jax.random.key(0))
    assert describe_tree(key, arg=0, name="k")[0].dtype == key.dtype


def test_tracers() -> None:
    def look(x: Any) -> Any:
        (leaf,) = describe_tree({"w": x}, arg=0, name="p")
        assert leaf.shape == (3,)
        return x

    jax.eval_shape(look, jnp.ones(3))


def test_what_is_no_array_is_listed() -> None:
    with pytest.raises(StateError) as caught:
        describe_tree({"a": "text", "b": 1, "c": [object()]}, arg=0, name="state")
    text = str(caught.value)
    assert "state['a']     a str" in text
    assert "state['c'][0]  a object" in text
    assert "state['b']" not in text
    assert "static_argnums" in text


def test_specs_and_stacks_go_by_position() -> None:
    tree = {"a": jnp.ones((2, 2)), "b": jnp.ones((2, 2))}
    a, b = describe_tree(
        tree,
        arg=0,
        name="p",
        base_specs=[None, P("model")],
        stacked_dims=[(0,), None],
    )
    assert (a.base_spec, a.stacked_dims) == (P(), (0,))
    assert (b.base_spec, b.stacked_dims) == (P("model"), ())
    with pytest.raises(InternalError, match="1 base_specs for 2 leaves"):
        describe_tree(tree, arg=0, name="p", base_specs=[None])


def test_kinds_of_dtype() -> None:
    key = jax.random.key(0).dtype
    assert is_key_dtype(key) and is_extended_dtype(key) and not is_inexact(key)
    for dtype in (jnp.bfloat16, jnp.float8_e5m2, jnp.complex64, np.float64):
        assert is_inexact(jnp.dtype(dtype)) and not is_key_dtype(jnp.dtype(dtype))
    for dtype in (np.bool_, np.int32, jnp.int4):
        assert not is_inexact(jnp.dtype(dtype))
    (leaf,) = describe_tree(jnp.ones((4, 2)), arg=0, name="x")
    assert describe_type(leaf) == "float32[4,2]"
