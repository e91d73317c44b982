"""Every model at every stage equals the step on one device."""

from __future__ import annotations

import jax
import optax
import pytest

import jzero
from tests.end_to_end.oracle import check_parity, mesh_of
from tests.end_to_end.small import MODELS, rows, step_of


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("model", MODELS)
def test_every_model_at_every_stage(model: str, stage: int) -> None:
    loss, params = MODELS[model]
    tx = optax.adam(1e-2)
    with jax.enable_x64(True):
        check_parity(
            step_of(loss, tx),
            (params, tx.init(params)),
            lambda i: (rows(i),),
            lambda out: out[:2],
            stage=stage,
        )


@pytest.mark.parametrize("num_devices", (1, 2, 4))
@pytest.mark.parametrize("stage", (1, 3))
@pytest.mark.parametrize("model", ("mlp", "scan_remat", "tied"))
def test_other_device_counts(model: str, stage: int, num_devices: int) -> None:
    loss, params = MODELS[model]
    tx = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2))
    with jax.enable_x64(True):
        check_parity(
            step_of(loss, tx),
            (params, tx.init(params)),
            lambda i: (rows(i),),
            lambda out: out[:2],
            stage=stage,
            mesh=mesh_of(num_devices),
        )


@pytest.mark.parametrize("name", ("spread_batch", "reduce_at_birth", "gather_at_use"))
def test_a_pass_can_be_switched_off_without_changing_numbers(name: str) -> None:
    loss, params = MODELS["scan_remat"]
    tx = optax.adam(1e-2)
    with jax.enable_x64(True):
        check_parity(
            step_of(loss, tx),
            (params, tx.init(params)),
            lambda i: (rows(i),),
            lambda out: out[:2],
            config=jzero.ZeroConfig(persistence_threshold=0, disable_passes=(name,)),
        )


def test_tiny_windows_do_not_change_numbers() -> None:
    tx = optax.adam(1e-2)
    tight = jzero.ZeroConfig(
        persistence_threshold=0,
        reduce_window_bytes=0,
        reuse_window_bytes=0,
        prefetch_bytes=0,
    )
    with jax.enable_x64(True):
        for model in ("mlp", "unrolled_remat", "tied"):
            loss, params = MODELS[model]
            check_parity(
                step_of(loss, tx),
                (params, tx.init(params)),
                lambda i: (rows(i),),
                lambda out: out[:2],
                config=tight,
            )
