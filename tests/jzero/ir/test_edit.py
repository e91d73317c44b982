"""Surgery leaves alone what it does not touch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jzero.compat.jaxpr import inner, jaxpr_callable
from jzero.ir.edit import Editor
from tests.jzero.ir.build import struct, trace

MESH = Mesh(np.array(jax.devices()), ("data",))


def function(x):
    with jax.named_scope("mine"):
        y = jnp.sin(x)
    jax.debug.print("{}", y.sum())
    return jnp.cos(y)


def test_an_unchanged_body_is_the_same_object() -> None:
    jaxpr = trace(function, struct(8))
    editor = Editor(MESH)
    for eqn in inner(jaxpr).eqns:
        editor.copy(eqn)
    assert editor.finish(jaxpr) is jaxpr


def test_an_insertion_keeps_equations_effects_and_source() -> None:
    jaxpr = trace(function, struct(8))
    editor = Editor(MESH)
    for eqn in inner(jaxpr).eqns:
        editor.copy(eqn)
        if eqn.primitive.name == "sin":
            out = eqn.outvars[0]
            placed = editor.constrain(out, ("data",), like=eqn, scope="jzero.test")
            editor.rename(out, placed)
            sine = eqn
    new = editor.finish(jaxpr)
    by_name = {e.primitive.name: e for e in inner(new).eqns}
    assert by_name["sin"] is sine
    assert inner(new).effects == inner(jaxpr).effects
    added = by_name["sharding_constraint"].source_info
    assert "mine" in str(added.name_stack) and "jzero.test" in str(added.name_stack)
    assert added.traceback is sine.source_info.traceback
    x = jnp.arange(8.0)
    np.testing.assert_array_equal(jaxpr_callable(new)(x)[0], function(x))
    assert editor.num_inserted == 1


def test_a_barrier_hands_every_value_through() -> None:
    jaxpr = trace(lambda x, y: (x, y), struct(4), struct(2))
    editor = Editor(MESH)
    one, two = inner(jaxpr).invars
    for old, new in zip(
        (one, two), editor.tie(one, two, like=None, scope="t"), strict=True
    ):
        editor.rename(old, new)
    run = jaxpr_callable(editor.finish(jaxpr))
    x, y = run(jnp.ones(4), jnp.zeros(2))
    assert x.shape == (4,) and y.shape == (2,)
