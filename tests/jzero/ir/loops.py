"""Functions of arrays as kernels, beside what JAX makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jzero.compat.jaxpr import inner
from jzero.ir.host_kernel import HostKernel


def kernel_of(function: Callable[..., Any], *args: Any) -> HostKernel:
    """The kernel of an element-wise function that returns a list."""
    body = inner(jax.make_jaxpr(function)(*args))
    return HostKernel(
        eqns=tuple(body.eqns),
        inputs=tuple(body.invars),
        outs=tuple(body.outvars),
        reuses={},
        spread={},
    )


def run(function: Callable[..., Any], *args: Any) -> list[jax.Array]:
    """Runs an element-wise function as a kernel."""
    return jax.jit(kernel_of(function, *args).run)(*args)
