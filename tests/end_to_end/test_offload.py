"""Offloaded state: the same numbers, and it rests where it is said to."""

from __future__ import annotations

from pathlib import Path
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

BOTH = Offload(optimizer="host", params="host")
WIDTH = 16


def config_of(offload: Offload | None, **settings: Any) -> ZeroConfig:
    return ZeroConfig(
        persistence_threshold=32, offload=offload, on_finding="ignore", **settings
    )


def create(key: jax.Array) -> tuple[Any, Any]:
    keys = jax.random.split(key, 3)
    params = {
        "up": jax.random.normal(keys[0], (WIDTH, 64)) * 0.3,
        "down": jax.random.normal(keys[1], (64, WIDTH)) * 0.3,
        "layers": jax.random.normal(keys[2], (4, WIDTH, WIDTH)) * 0.3,
    }
    return params, optimizer().init(params)


def optimizer() -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))


def loss_of(params: Any, x: jax.Array) -> jax.Array:
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)

    def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(h @ w), None

    h = jnp.tanh(x.astype(jnp.bfloat16) @ half["up"]) @ half["down"]
    h, _ = jax.lax.scan(jax.checkpoint(layer), h, half["layers"])
    return (h.astype(jnp.float32) ** 2).mean()


def train_step(params: Any, opt_state: Any, x: jax.Array) -> tuple[Any, ...]:
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    updates, opt_state = optimizer().update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    # A metric of the optimizer state mixes what rests on the host with the device.
    moments = optax.tree_utils.tree_get(opt_state, "mu")
    return params, opt_state, loss, moments["up"].mean() + params["down"].mean()


def data(i: int) -> np.ndarray:
    return np.random.default_rng(i).normal(size=(16, WIDTH)).astype(np.float32)


def run(
    stage: int, offload: Offload | None, num_steps: int = 4, **settings: Any
) -> tuple[Any, list[Any], jzero.TrainStep]:
    step = jzero.shard_train_step(
        train_step, stage=stage, config=config_of(offload), **settings
    )
    state = step.init(create, jax.random.key(0))
    metrics = []
    for i in range(num_steps):
        *state, loss, metric = step(*state, data(i))
        metrics.append((float(loss), float(metric)))
    return tuple(state), metrics, step


def assert_same(got: Any, wanted: Any) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def kinds(tree: Any) -> set[str]:
    return {x.sharding.memory_kind for x in jax.tree.leaves(tree) if x.size >= 32}


@pytest.mark.parametrize("compute", ["device", "host"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_not_a_bit_differs(stage: int, compute: Any) -> None:
    offload = Offload(optimizer="host", params="host", compute=compute)
    wanted, wanted_metrics, _ = run(stage, None)
    got, metrics, step = run(stage, offload)
    assert metrics == wanted_metrics
    assert_same(got, wanted)
    assert kinds(got) == {"pinned_host"}
    assert kinds(wanted) == {"device"}
    assert len(step._programs) == 1


def test_the_optimizer_alone() -> None:
    wanted, _, _ = run(2, None)
    (params, opt_state), _, _ = run(2, Offload(optimizer="host"))
    assert_same((params, opt_state), wanted)
    assert kinds(params) == {"device"}
    assert kinds(opt_state) == {"pinned_host"}


def run_unoptimized(stage: int, offload: Offload | None) -> tuple[Any, Any]:
    """Without fused multiply-adds, whose place depends on what XLA:CPU fuses."""
    options = {"xla_backend_optimization_level": 0}
    config = config_of(offload, compiler_options=options)
    step = jzero.shard_train_step(train_step, stage=stage, config=config)
    state = step.init(create, jax.random.key(0))
    for i in range(4):
        *state, loss, metric = step(*state, data(i))
    return tuple(state), (loss, metric)


@pytest.mark.parametrize("stage", [1, 3])
def test_tiles_do_the_same_arithmetic(stage: int) -> None:
    wanted = run_unoptimized(stage, None)
    for window in (256, 1024):
        tiny = Offload(optimizer="host", params="host", window=window)
        assert_same(run_unoptimized(stage, tiny), wanted)


def test_tiles_of_large_leaves_differ_by_rounding_alone() -> None:
    wanted, wanted_metrics, _ = run(3, None)
    tiny = Offload(optimizer="host", params="host", window=1024)
    got, metrics, _ = run(3, tiny)
    np.testing.assert_allclose(metrics, wanted_metrics, rtol=1e-6)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=3e-7)


@pytest.mark.parametrize("stage", [1, 3])
def test_half_of_it(stage: int) -> None:
    wanted, _, _ = run(stage, None)
    half = Offload(optimizer="host", params="host", ratio=0.5)
    got, _, _ = run(stage, half)
    assert_same(got, wanted)
    assert kinds(got) == {"device", "pinned_host"}


def test_one_device() -> None:
    wanted, _, _ = run(3, None, mesh=mesh_of(1))
    got, _, _ = run(3, BOTH, mesh=mesh_of(1))
    assert_same(got, wanted)
    assert kinds(got) == {"pinned_host"}


OPTIMIZERS = {
    "lamb": lambda: optax.lamb(1e-2),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=8),
    "multi_steps": lambda: optax.MultiSteps(optax.adam(1e-2), 2),
    "ema_after_norm": lambda: optax.chain(
        optax.adam(1e-2), optax.clip_by_global_norm(0.01), optax.ema(0.9)
    ),
}


@pytest.mark.parametrize("window", [64, 2**20])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_that_look_at_whole_leaves(name: str, window: int) -> None:
    tx = OPTIMIZERS[name]()
    offload = Offload(optimizer="host", params="host", window=window)
    with jax.enable_x64(True):
        params = mlp_params()
        check_parity(
            step_of(mlp, tx),
            (params, tx.init(params)),
            lambda i: (rows(i),),
            lambda out: out[:2],
            stage=3,
            config=config_of(offload),
        )


def test_micro_batches_fetch_within_their_loop() -> None:
    def step(params: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        def add(total: Any, part: jax.Array) -> tuple[Any, None]:
            grads = jax.grad(loss_of)(params, part)
            return jax.tree.map(jnp.add, total, grads), None

        parts = x.reshape(2, -1, WIDTH)
        zeros = jax.tree.map(jnp.zeros_like, params)
        grads, _ = jax.lax.scan(add, zeros, parts)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), x.sum()

    results = []
    for offload in (None, Offload(params="host")):
        sharded = jzero.shard_train_step(step, stage=3, config=config_of(offload))
        params = sharded.init(lambda: create(jax.random.key(0))[0])
        for i in range(2):
            params, _ = sharded(params, data(i))
        results.append(params)
    assert_same(*results)
    assert kinds(results[1]) == {"pinned_host"}


def test_nothing_piles_up_over_200_steps() -> None:
    state, _, step = run(3, BOTH, num_steps=3)
    x = step.shard_batch(data(0))
    counts = []
    for i in range(200):
        params, opt_state, *_ = step(*state, x)
        state = params, opt_state
        if i in (1, 199):
            counts.append(len(jax.live_arrays()))
    assert counts[0] == counts[1]
    assert kinds(state) == {"pinned_host"}


def test_evaluating_gathering_and_placing_a_state() -> None:
    (params, opt_state), _, step = run(3, BOTH)
    (plain, _), _, plain_step = run(3, None)
    assert_same(step.gather(params), plain_step.gather(plain))
    value = step.eval_step(loss_of)(params, data(9))
    np.testing.assert_array_equal(value, plain_step.eval_step(loss_of)(plain, data(9)))
    placed = step.shard((plain, opt_state))
    assert kinds(placed) == {"pinned_host"}
    assert_same(placed[0], plain)


def test_a_state_from_the_device_is_moved_with_a_warning() -> None:
    (plain, _), _, _ = run(3, None)
    (_, opt_state), _, step = run(3, BOTH)
    with pytest.warns(UserWarning, match="did not lie where the plan wants it"):
        params, opt_state, _, _ = step(plain, opt_state, data(0))
    assert kinds((params, opt_state)) == {"pinned_host"}


def test_checkpoints_come_back_in_kind_or_in_the_other(tmp_path: Path) -> None:
    states, losses = {}, []
    steps = {
        name: jzero.shard_train_step(train_step, stage=3, config=config_of(offload))
        for name, offload in (("host", BOTH), ("device", None))
    }
    state = steps["host"].init(create, jax.random.key(0))
    state = steps["host"](*state, data(0))[:2]
    with jzero.Checkpointer(tmp_path, steps["host"]) as saver:
        saver.save(0, state)
    for name, step in steps.items():
        with jzero.Checkpointer(tmp_path, step) as saver:
            states[name] = saver.restore(like=step.birth(create, jax.random.key(1)))
        assert_same(states[name], state)
    assert kinds(states["host"]) == {"pinned_host"}
    assert kinds(states["device"]) == {"device"}
    for name, step in steps.items():
        *_, loss, metric = step(*states[name], data(1))
        losses.append((float(loss), float(metric)))
    assert losses[0] == losses[1]


def test_quantized_moments_rest_in_host_memory() -> None:
    tx = jzero.optim.adamw(1e-2, state="int8", min_coded_elems=0)

    def step(params: Any, opt_state: Any, x: jax.Array) -> tuple[Any, ...]:
        loss, grads = jax.value_and_grad(loss_of)(params, x)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    def begin(key: jax.Array) -> tuple[Any, Any]:
        params, _ = create(key)
        return params, tx.init(params)

    results = []
    for offload in (None, Offload(optimizer="host")):
        sharded = jzero.shard_train_step(step, stage=3, config=config_of(offload))
        state = sharded.init(begin, jax.random.key(0))
        for i in range(3):
            *state, _ = sharded(*state, data(i))
        results.append(state)
    assert_same(*results)
    codes = [x for x in jax.tree.leaves(results[1][1]) if x.dtype == jnp.uint8]
    assert codes
    assert kinds(codes) == {"pinned_host"}


def test_beside_a_tensor_parallel_axis() -> None:
    devices = np.array(jax.devices()).reshape(4, 2)
    mesh = jax.sharding.Mesh(devices, ("data", "model"))
    spec = {"up": P(None, "model"), "down": P("model"), "layers": P()}
    params = jax.tree.map(np.asarray, create(jax.random.key(0))[0])
    placed = {
        name: jax.device_put(value, NamedSharding(mesh, spec[name]))
        for name, value in params.items()
    }
    results = []
    for offload in (None, BOTH, Offload(optimizer="host", params="host", window=1024)):
        step = jzero.shard_train_step(
            train_step, stage=3, mesh=mesh, config=config_of(offload)
        )
        state = step.shard((placed, optimizer().init(placed)))
        for i in range(2):
            *state, _, _ = step(*state, data(i))
        results.append(state)
    assert_same(results[0], results[1])
    for one, other in zip(
        jax.tree.leaves(results[2]), jax.tree.leaves(results[0]), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=0, atol=3e-7)
    up = results[1][0]["up"].sharding
    assert up.memory_kind == "pinned_host"
    assert "model" in up.spec and "data" in up.spec
