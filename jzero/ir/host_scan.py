"""Scanning over stacks that lie in host memory.

As an operand that the loop takes apart, the compiler would copy a whole stack within
host memory. So each turn cuts its slice out of the whole by its number. Lives here:
`scan_by_number`. May import: compat. Read next: `jzero/passes/offload.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from jzero.compat.jaxpr import JaxprEqn, scan_counts

__all__ = ["scan_by_number"]


def scan_by_number(
    eqn: JaxprEqn, body: Callable[..., Sequence[Any]], is_on_host: Sequence[bool]
) -> Callable[..., list[jax.Array]]:
    """Returns a function of the operands of a scan that does the same.

    Args:
      eqn: the scan; it carries nothing that lies in host memory.
      body: its body, which takes slices of what lies in host memory there.
      is_on_host: per operand, whether it lies in host memory.
    """
    num_consts, num_carry = scan_counts(eqn.params)
    num_fixed = num_consts + num_carry

    def run(*arrays: jax.Array) -> list[jax.Array]:
        consts, carry = arrays[:num_consts], list(arrays[num_consts:num_fixed])
        stacks = list(zip(arrays[num_fixed:], is_on_host[num_fixed:], strict=True))

        def turn(carry: list[Any], now: tuple[Any, list[Any]]) -> Any:
            number, slices = now
            rest = iter(slices)
            here = [
                lax.dynamic_index_in_dim(x, number, 0, keepdims=False)
                if is_host
                else next(rest)
                for x, is_host in stacks
            ]
            outs = body(*consts, *carry, *here)
            return list(outs[:num_carry]), list(outs[num_carry:])

        length = eqn.params["length"]
        carry, stacked = lax.scan(
            turn,
            carry,
            (jnp.arange(length), [x for x, is_host in stacks if not is_host]),
            length=length,
            reverse=eqn.params["reverse"],
            unroll=eqn.params["unroll"],
        )
        return [*carry, *stacked]

    return run
