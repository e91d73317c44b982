"""The spec of an update, in the program and through transformations of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import LeafFormat, fused_update
from pallas_kernels.marked import UpdateSpec, mark, read_spec
from tests.pallas_kernels.leaves import RULE, SCALARS, random_leaf

SPEC = UpdateSpec(
    rules=(RULE,), forms=(LeafFormat(),), backend="xla", structure=None, kinds=()
)


def marked(x: Any) -> Any:
    return mark(x, SPEC) * 3


TRANSFORMS: dict[str, Any] = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "vmap": jax.vmap,
    "gradients": lambda f: jax.vmap(jax.grad(f)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_mark_changes_nothing(name: str) -> None:
    transform, x = TRANSFORMS[name], jnp.arange(3.0)
    want = transform(lambda x: x * 3)(x)
    np.testing.assert_array_equal(transform(marked)(x), want)


def test_an_update_says_what_it_is() -> None:
    form, state = random_leaf(0, (4, 5))

    def update(state: Any) -> Any:
        return fused_update([RULE], [form], [state], SCALARS, backend="pallas_tpu")

    (call,) = [e for e in jax.make_jaxpr(update)(state).eqns if "jaxpr" in e.params]
    spec = read_spec(call.params["jaxpr"].eqns)
    assert spec is not None
    assert (spec.rules, spec.forms, spec.backend) == ((RULE,), (form,), "pallas_tpu")
    assert spec.kinds == tuple((v.aval.shape, str(v.aval.dtype)) for v in call.invars)
    assert not spec.asks_for_deltas
    assert read_spec(jax.make_jaxpr(jnp.sin)(1.0).eqns) is None
