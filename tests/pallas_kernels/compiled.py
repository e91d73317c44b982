"""Updates compiled for GPUs that are not there."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jzero.audit.pods import COMPILER_OPTIONS, pod_mesh

NUM_DEVICES = 8
WIDTH = 2048
NUM_ELEMS = WIDTH * WIDTH // NUM_DEVICES  # of one device's large leaf


def compile_update(tx: Any, dtype: Any, *, num_small: int = 20) -> Any:
    """Compiles `tx.apply` for eight H100s, each leaf sharded on dim 0.

    Args:
        tx: An optimizer of `jzero.optim`.
        dtype: Of parameters and gradients.
        num_small: How many vectors of 64 there are beside one square matrix.

    Returns:
        The compiled program; parameters and state are donated.
    """
    mesh = pod_mesh("h100:1x8")
    params = {f"b{i}": jax.ShapeDtypeStruct((64,), dtype) for i in range(num_small)}
    params["w"] = jax.ShapeDtypeStruct((WIDTH, WIDTH), dtype)

    def place(struct: Any) -> Any:
        spec = PartitionSpec("data") if struct.ndim == 2 else PartitionSpec()
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=sharding)

    params = jax.tree.map(place, params)
    state = jax.tree.map(place, jax.eval_shape(tx.init, params))

    def update(params: Any, state: Any, grads: Any) -> Any:
        return tx.apply(grads, state, params)[:2]

    shardings = jax.tree.map(lambda s: s.sharding, (params, state))
    jitted = jax.jit(update, donate_argnums=(0, 1), out_shardings=shardings)
    return compile_for_h100(jitted, mesh, params, state, params)


def compile_for_h100(jitted: Any, mesh: Mesh, *structs: Any) -> Any:
    """Compiles a function that holds kernels."""
    chip = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", 132, "gpu")
    # Kernels ask for the chip while they are lowered.
    with jax.sharding.use_abstract_mesh(
        mesh.abstract_mesh.update(abstract_device=chip)
    ):
        lowered = jitted.lower(*structs)
    return lowered.compile(compiler_options=dict(COMPILER_OPTIONS))
