"""Small jaxprs and marks for the tests of the toolkit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jzero.compat.jaxpr import AnyJaxpr
from jzero.ir.marks import Mark
from jzero.ir.specs import Dims


def struct(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def trace(function: Callable[..., Any], *shapes: Any) -> AnyJaxpr:
    return jax.make_jaxpr(function)(*shapes)


def mark(*dims: Any, leaf: int = 0, is_once: bool = False) -> Mark:
    whole: Dims = (None,) * len(dims)
    return Mark(dims=dims, base=whole, leaf=leaf, is_once=is_once)


def scanned(w: jax.Array, x: jax.Array) -> jax.Array:
    """A scan over stacked weights, each cast to bfloat16."""
    low = jnp.bfloat16
    return jax.lax.scan(lambda c, v: (c @ v.astype(low), None), x.astype(low), w)[0]
