"""The TPU kernel, compiled for a TPU that is not there.

That it computes the right numbers is tested by the interpreter, in `test_fused.py`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

import jzero
from jzero.audit.pods import pod_mesh
from tests.needs import needs_libtpu


@needs_libtpu
def test_it_compiles_in_place() -> None:
    tx = jzero.optim.adamw(1e-3, backend="pallas_tpu")
    mesh = pod_mesh("v5e:2x2")
    params = {"w": jax.ShapeDtypeStruct((1024, 1024), jnp.float32)}

    def place(struct: Any) -> Any:
        spec = PartitionSpec("data") if struct.ndim == 2 else PartitionSpec()
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=sharding)

    params = jax.tree.map(place, params)
    state = jax.tree.map(place, jax.eval_shape(tx.init, params))

    def update(params: Any, state: Any, grads: Any) -> Any:
        return tx.apply(grads, state, params)[:2]

    jitted = jax.jit(update, donate_argnums=(0, 1))
    compiled = jitted.lower(params, state, params).compile()
    assert "all-gather" not in (compiled.as_text() or "")
