"""Any optax transformation, on sharded state, equals one device."""

from __future__ import annotations

import jax
import optax
import pytest

from tests.end_to_end.oracle import check_parity
from tests.end_to_end.small import mlp, mlp_params, rows, step_of

_DECAY = {"a": {"w": True, "b": False}, "c": {"w": True, "b": False}}
_PARTS = {"a": "frozen", "c": "trained"}

OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(1e-2),
    "adamw": lambda: optax.adamw(1e-2, weight_decay=0.1),
    "lion": lambda: optax.lion(1e-3),
    "lamb": lambda: optax.lamb(1e-2),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=8),
    "muon": lambda: optax.contrib.muon(1e-2),
    "rmsprop": lambda: optax.rmsprop(1e-2),
    "adagrad": lambda: optax.adagrad(0.1),
    "schedule_free": lambda: optax.contrib.schedule_free_adamw(1e-2),
    "clip_by_global_norm": lambda: optax.chain(
        optax.clip_by_global_norm(0.01), optax.adam(1e-2)
    ),
    "adaptive_grad_clip": lambda: optax.chain(
        optax.adaptive_grad_clip(0.01), optax.sgd(0.1, momentum=0.9)
    ),
    "multi_steps": lambda: optax.MultiSteps(optax.adam(1e-2), 2),
    "masked": lambda: optax.masked(optax.adam(1e-2), _DECAY),
    "multi_transform": lambda: optax.multi_transform(
        {"trained": optax.adam(1e-2), "frozen": optax.set_to_zero()}, _PARTS
    ),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(
        learning_rate=optax.linear_schedule(0.1, 0.01, 10)
    ),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(1e-2), 3),
    "ema": lambda: optax.chain(optax.ema(0.9), optax.sgd(0.1)),
}


@pytest.mark.parametrize("stage", (1, 3))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(name: str, stage: int) -> None:
    tx = OPTIMIZERS[name]()
    with jax.enable_x64(True):
        params = mlp_params()
        check_parity(
            step_of(mlp, tx),
            (params, tx.init(params)),
            lambda i: (rows(i),),
            lambda out: out[:2],
            stage=stage,
        )


@pytest.mark.parametrize("stage", (1, 3))
def test_lookahead_keeps_slow_weights(stage: int) -> None:
    tx = optax.lookahead(optax.adam(1e-2), 3, 0.5)

    def step(params, opt_state, x):
        value, grads = jax.value_and_grad(mlp)(params.fast, x)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    with jax.enable_x64(True):
        params = optax.LookaheadParams.init_synced(mlp_params())
        check_parity(
            step,
            (params, tx.init(params)),
            lambda i: (rows(i),),
            lambda out: out[:2],
            stage=stage,
        )
