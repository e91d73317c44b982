"""Which JAX has what the GPU kernels need."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import jzero
from pallas_kernels.compat import check_version, has_mosaic_gpu


def test_an_old_jax_is_told_what_to_do() -> None:
    is_new = jax.__version_info__ >= (0, 12)
    assert has_mosaic_gpu() is is_new
    if is_new:
        check_version()
        return
    tx = jzero.optim.sgd(1e-3, backend="mosaic_gpu_interpret")
    params = {"w": jnp.ones(4)}
    with pytest.raises(NotImplementedError, match=r"need JAX 0\.12.*\n.*xla"):
        tx.apply(params, tx.init(params), params)
