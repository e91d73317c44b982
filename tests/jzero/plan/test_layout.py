"""The sharding rule and the arithmetic of specs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jzero.errors import MeshError, StateError
from jzero.plan.layout import (
    check_axes,
    describe_axes,
    format_spec,
    local_bytes,
    local_shape,
    normalize_spec,
    plan_leaf_spec,
    spec_axes,
)
from jzero.plan.leaves import LeafFacts

F32 = np.dtype("f4")


def _plan(
    *shape: int,
    sizes: dict[str, int] | None = None,
    zero: tuple[str, ...] = ("data",),
    base: P = P(),
    stacked: tuple[int, ...] = (),
    threshold: int = 0,
) -> tuple[P, str]:
    leaf = LeafFacts(
        path="p['w']",
        keys=("w",),
        arg=0,
        shape=shape,
        dtype=F32,
        base_spec=base,
        stacked_dims=stacked,
    )
    return plan_leaf_spec(
        leaf,
        axis_sizes=sizes or {"data": 8},
        zero_axes=zero,
        threshold_elems=threshold,
    )


@pytest.mark.parametrize(
    ("shape", "num_devices", "spec"),
    [
        ((16, 6), 8, P("data")),
        ((8, 16), 8, P("data")),
        ((16, 16), 8, P("data")),
        ((16, 16, 4), 8, P("data")),
        ((17, 16), 8, P(None, "data")),
        ((17, 16), 6, P()),
        ((50257, 8), 8, P(None, "data")),
        ((7,), 8, P()),
        ((3, 5), 8, P()),
        ((3, 5), 3, P("data")),
        ((24, 40), 8, P("data")),
        ((24, 40), 6, P("data")),
        ((24, 40), 3, P("data")),
        ((8,), 8, P("data")),
        ((1,), 8, P()),
        ((), 8, P()),
        ((0,), 8, P()),
        ((16, 16), 1, P()),
    ],
)
def test_first_dim_that_divides(
    shape: tuple[int, ...], num_devices: int, spec: P
) -> None:
    assert _plan(*shape, sizes={"data": num_devices})[0] == spec


def test_reasons_name_the_numbers() -> None:
    assert _plan(16, 6)[1] == "dim 0 of 16 over data=8"
    assert _plan(7)[1] == "no dim of (7,) divides by data=8"
    assert _plan()[1] == "a scalar"
    assert _plan(0, 8)[1] == "empty"
    assert _plan(16, 6, threshold=97)[1] == "96 elements, below 97"
    assert _plan(16, sizes={"data": 1})[1] == "data=1 splits nothing"


def test_threshold_is_in_elements() -> None:
    assert _plan(16, 6, threshold=96)[0] == P("data")
    assert _plan(16, 6, threshold=97)[0] == P()


def test_stacked_dims_are_left_alone() -> None:
    assert _plan(64, 16, stacked=(0,))[0] == P(None, "data")
    spec, reason = _plan(64, 6, stacked=(0,))
    assert spec == P()
    assert reason == ("no dim of (64, 6) divides by data=8 (stacked dim 0 left out)")


def test_axes_of_the_user_stay() -> None:
    sizes = {"data": 4, "model": 2}
    base = P("model")
    assert _plan(64, 16, sizes=sizes, base=base)[0] == P("model", "data")
    # No free dim divides: the user's dim is split further.
    spec, reason = _plan(64, 6, sizes=sizes, base=base)
    assert spec == P(("model", "data"))
    assert reason == "dim 0 of 64 over data=4, on top of model=2"
    # Not even that: 4 does not divide by 2 x 4.
    spec, reason = _plan(4, 6, sizes=sizes, base=base)
    assert spec is base
    assert reason == "no dim of (4, 6) divides by data=4 beside P('model')"
    # Below the threshold the user's spec stays too.
    assert _plan(64, 16, sizes=sizes, base=base, threshold=10**6)[0] is base


def test_leaf_that_the_user_split_over_the_zero_axis() -> None:
    base = P("data")
    spec, reason = _plan(16, 64, base=base)
    assert spec is base
    assert reason == "already split over data by the caller"


def test_several_zero_axes() -> None:
    sizes = {"a": 2, "b": 4}
    both = ("a", "b")
    assert _plan(16, 3, sizes=sizes, zero=both)[0] == P(("a", "b"))
    # The larger product that fits wins over the larger dim.
    spec, reason = _plan(4, 6, sizes=sizes, zero=both)
    assert spec == P("b")
    assert reason == "dim 0 of 4 over b=4; a=2 divides no dim further"
    assert _plan(6, 3, sizes=sizes, zero=both)[0] == P("a")
    assert _plan(7, 3, sizes=sizes, zero=both)[0] == P()
    assert _plan(8, 3, sizes={"a": 1, "b": 4}, zero=both)[0] == P("b")


def test_specs_that_do_not_fit() -> None:
    with pytest.raises(MeshError, match=r"'model'(.|\n)*p\['w'\]"):
        _plan(16, 16, base=P("model"))
    with pytest.raises(StateError, match=r"p\['w'\] of shape \(16,\)"):
        _plan(16, base=P(None, "data"))
    with pytest.raises(MeshError, match=r"lacks 'zero'(.|\n)*'data'  size 8"):
        check_axes(("zero",), {"data": 8}, setting="axis")
    check_axes(("data",), {"data": 8}, setting="axis")


def test_normal_form() -> None:
    assert normalize_spec(P("a", None, ("b", "c")), 4) == (("a",), (), ("b", "c"), ())
    assert normalize_spec(P(P.UNCONSTRAINED), 1) == ((),)
    assert normalize_spec(P("a", None, None), 1) == (("a",),)
    assert spec_axes(P(("a", "b"), None, "c")) == ("a", "b", "c")
    assert format_spec(P(None, ("a", "b"))) == "P(None, ('a', 'b'))"
    assert describe_axes(("a", "b"), {"a": 2, "b": 3}) == "a=2 x b=3"


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((16, 8), P("a", "b")),
        ((16, 8), P(("a", "b"))),
        ((16, 8), P(None, ("b", "a"))),
        ((16,), P()),
        ((), P()),
    ],
)
def test_local_shape_agrees_with_jax(shape: tuple[int, ...], spec: P) -> None:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("a", "b"))
    sizes = {"a": 2, "b": 4}
    sharding = NamedSharding(mesh, spec)
    assert local_shape(shape, spec, sizes) == sharding.shard_shape(shape)
    array = jax.device_put(jnp.ones(shape, jnp.bfloat16), sharding)
    shard_bytes = array.addressable_shards[0].data.nbytes
    assert local_bytes(shape, array.dtype, spec, sizes) == shard_bytes
