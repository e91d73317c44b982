"""Small traced programs and marks for the tests of the jaxpr toolkit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jzero.compat.jaxpr import AnyJaxpr, JaxprEqn, inner
from jzero.ir.bodies import bodies_of
from jzero.ir.marks import Mark
from jzero.ir.specs import Dims

DATA = "data"


def trace(function: Callable[..., Any], *shapes: Any) -> AnyJaxpr:
    """Traces a function of float32 arrays of the given shapes, or of structs."""
    structs = [
        jax.ShapeDtypeStruct(s, jnp.float32) if isinstance(s, tuple) else s
        for s in shapes
    ]
    return jax.make_jaxpr(function)(*structs)


def shard(*dims: str | None, leaf: int = 0, base: Dims | None = None) -> Mark:
    """Returns the mark of a shard that lies as `dims`; whole where not said."""
    return Mark(dims=dims, base=base or (None,) * len(dims), leaf=leaf)


def eqn_of(jaxpr: AnyJaxpr, name: str, index: int = 0) -> JaxprEqn:
    """Finds the equation of a primitive, looking into bodies too."""
    return all_of(jaxpr, name)[index]


def all_of(jaxpr: AnyJaxpr, name: str) -> list[JaxprEqn]:
    """Finds all equations of a primitive, in order, outer ones first."""
    found = []
    for eqn in inner(jaxpr).eqns:
        if eqn.primitive.name == name:
            found.append(eqn)
        for body in bodies_of(eqn):
            found += all_of(body.jaxpr, name)
    return found
