"""Updates as kernels on the host: the user's numbers, at every stage."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jzero
from jzero import Offload, ZeroConfig
from tests.end_to_end.oracle import check_parity, mesh_of
from tests.end_to_end.small import mlp, mlp_params, rows, step_of

MLP = mlp_params()
BOTH = Offload(optimizer="host", params="host", compute="host", compiler="llvm")
ALONE = Offload(optimizer="host", compute="host", compiler="llvm")


def config_of(offload: Offload) -> ZeroConfig:
    return ZeroConfig(persistence_threshold=0, offload=offload, on_finding="ignore")


def calls(step: jzero.TrainStep, *args: Any) -> int:
    """How many kernels the compiled step calls."""
    text = step.compile(*args).as_text()
    return text.count('custom_call_target="jzero_')


def check(
    tx: optax.GradientTransformation,
    params: Any = MLP,
    loss: Any = mlp,
    *,
    offload: Offload = BOTH,
    stage: int = 3,
    num_kernels: int = 4,
    **settings: Any,
) -> None:
    with jax.enable_x64(True):
        step = check_parity(
            step_of(loss, tx),
            (params, tx.init(params)),
            lambda i: (rows(i),),
            lambda out: out[:2],
            stage=stage,
            num_steps=3,
            config=config_of(offload),
            **settings,
        )
        assert calls(step, params, tx.init(params), rows(0)) == num_kernels


# Stage 2 is that of the test in float32 below.
@pytest.mark.parametrize(("stage", "offload"), [(0, BOTH), (1, ALONE), (3, ALONE)])
def test_every_stage(stage: int, offload: Offload) -> None:
    tx = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2))
    check(tx, offload=offload, stage=stage)


# name -> the optimizer and its kernels for each leaf
OPTIMIZERS: dict[str, tuple[optax.GradientTransformation, int]] = {
    "adabelief": (optax.adabelief(1e-2), 1),
    "adagrad": (optax.adagrad(1e-2), 1),
    "adamax": (optax.adamax(1e-2), 1),
    "amsgrad": (optax.amsgrad(1e-2), 1),
    "lion": (optax.lion(1e-2), 1),
    # The norm of an update stands between two halves of it.
    "lamb": (optax.lamb(1e-2), 2),
    "momentum": (optax.sgd(1e-2, momentum=0.9, nesterov=True), 1),
    "rmsprop": (optax.rmsprop(1e-2), 1),
    "schedule": (optax.adam(optax.linear_schedule(1e-2, 1e-3, 10)), 1),
    "yogi": (optax.yogi(1e-2), 1),
}


def test_optimizers() -> None:
    """All in one step, each for parameters of its own."""
    params = {name: {"w": np.ones((24, 16)) * 0.1} for name in OPTIMIZERS}
    txs = {name: tx for name, (tx, _) in OPTIMIZERS.items()}
    tx = optax.partition(txs, {name: name for name in OPTIMIZERS})

    def loss(params: Any, x: jax.Array) -> jax.Array:
        outs = [jnp.tanh(x @ p["w"]) - 0.3 for p in params.values()]
        return sum((out**2).mean() for out in outs)

    check(tx, params, loss, num_kernels=sum(n for _, n in OPTIMIZERS.values()))


def test_half_of_it() -> None:
    half = Offload(
        optimizer="host", params="host", compute="host", compiler="llvm", ratio=0.5
    )
    params = mlp_params()
    tx = optax.adam(1e-2)
    step = jzero.shard_train_step(step_of(mlp, tx), stage=1, config=config_of(half))
    assert 0 < calls(step, params, tx.init(params), rows(0)) < 4


def test_float32_differs_by_rounding_alone() -> None:
    tx = optax.adamw(1e-2)
    step_fn = step_of(mlp, tx)
    params = jax.tree.map(lambda x: np.asarray(x, np.float32), mlp_params())
    step = jzero.shard_train_step(step_fn, stage=2, config=config_of(BOTH))
    ours: Any = step.shard((params, tx.init(params)))
    theirs: Any = (params, tx.init(params))
    for i in range(3):
        x = rows(i).astype(np.float32)
        *ours, _ = step(*ours, x)
        *theirs, _ = jax.jit(step_fn)(*theirs, x)
    kinds = {x.sharding.memory_kind for x in jax.tree.leaves(ours) if x.shape}
    assert kinds == {"pinned_host"}
    for one, other in zip(
        jax.tree.leaves(ours[0]), jax.tree.leaves(theirs[0]), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=0, atol=3e-7)


def test_bfloat16_parameters_and_moments_of_odd_sizes() -> None:
    tx = optax.adamw(1e-2, mu_dtype=jnp.bfloat16)
    rng = np.random.default_rng(0)
    params = {
        "even": jnp.asarray(rng.normal(size=(16, 13)), jnp.bfloat16),
        "odd": jnp.asarray(rng.normal(size=(13, 7)), jnp.bfloat16),
    }

    def step_fn(params: Any, opt_state: Any, x: Any) -> Any:
        def loss(p: Any) -> jax.Array:
            return (jnp.tanh(x @ p["even"] @ p["odd"]) ** 2).mean()

        grads = jax.grad(loss)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, grads

    step = jzero.shard_train_step(step_fn, stage=3, config=config_of(BOTH))
    x = jnp.asarray(rng.normal(size=(8, 16)), jnp.bfloat16)
    state = step.shard((params, tx.init(params)))
    new, opt_state, grads = step(*state, x)
    # The same gradients, or the two would drift by more than the update's rounding.
    updates, wanted = jax.jit(tx.update)(grads, tx.init(params), params)
    for name, got in new.items():
        want = np.asarray(params[name] + updates[name], np.float32)
        assert got.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(got, np.float32), want, atol=2e-2)
    mus = optax.tree_utils.tree_get(opt_state, "mu")
    for name, mu in optax.tree_utils.tree_get(wanted, "mu").items():
        assert mus[name].dtype == jnp.bfloat16
        np.testing.assert_allclose(
            np.asarray(mus[name], np.float32), np.asarray(mu, np.float32), rtol=1e-2
        )


def test_beside_a_tensor_parallel_axis() -> None:
    devices = np.array(jax.devices()).reshape(4, 2)
    mesh = jax.sharding.Mesh(devices, ("data", "model"))
    tx = optax.adam(1e-2)
    params = jax.tree.map(lambda x: np.asarray(x, np.float32), mlp_params())
    placed = {
        "a": jax.device_put(params["a"], NamedSharding(mesh, P(None, "model"))),
        "c": jax.device_put(params["c"], NamedSharding(mesh, P())),
    }
    step_fn = step_of(mlp, tx)
    step = jzero.shard_train_step(step_fn, stage=3, mesh=mesh, config=config_of(BOTH))
    state: Any = step.shard((placed, tx.init(placed)))
    x = rows(0).astype(np.float32)
    *state, loss = step(*state, x)
    wanted, _, wanted_loss = jax.jit(step_fn)(params, tx.init(params), x)
    assert float(loss) == pytest.approx(float(wanted_loss), rel=1e-6)
    for one, other in zip(
        jax.tree.leaves(state[0]), jax.tree.leaves(wanted), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=0, atol=3e-7)
    assert "model" in state[0]["a"]["w"].sharding.spec


def test_one_device() -> None:
    check(optax.adam(1e-2), mesh=mesh_of(1))
