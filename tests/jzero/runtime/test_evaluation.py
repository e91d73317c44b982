"""Forward-only functions on sharded parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jzero


def step_fn(params, x):
    grads = jax.grad(lambda p: ((x @ p["w"]) ** 2).mean())(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), x.sum()


@pytest.fixture(params=(0, 1, 3))
def placed(request):
    config = jzero.ZeroConfig(persistence_threshold=0)
    step = jzero.shard_train_step(step_fn, stage=request.param, config=config)
    return step, step.shard({"w": jnp.arange(128.0).reshape(16, 8)})


def test_the_same_result_and_nothing_donated(placed) -> None:
    step, params = placed
    evaluate = step.eval_step(lambda p, x: x @ p["w"])
    x = np.ones((8, 16), np.float32)
    for _ in range(2):
        np.testing.assert_allclose(evaluate(params, x), x @ np.asarray(params["w"]))
    assert not params["w"].is_deleted()
    assert len(evaluate._runs) == 1


def test_one_row_is_not_split_when_asked(placed) -> None:
    step, params = placed
    x = np.ones((1, 16), np.float32)
    whole = step.eval_step(lambda p, x: x @ p["w"], batch_argnums=())
    assert whole(params, x).shape == (1, 8)
    with pytest.raises(jzero.BatchError):
        step.eval_step(lambda p, x: x @ p["w"])(params, np.ones((3, 16), np.float32))


def test_static_arguments_and_structure(placed) -> None:
    step, params = placed
    evaluate = step.eval_step(lambda p, x, mode: {mode: (x @ p["w"]).sum()})
    assert set(evaluate(params, np.ones((8, 16), np.float32), "loss")) == {"loss"}


def test_parameters_on_one_device_are_refused() -> None:
    step = jzero.shard_train_step(step_fn)
    params = jax.device_put({"w": jnp.ones((16, 8))}, jax.devices()[1])
    with pytest.raises(jzero.PlacementError, match=r"p\['w'\](.|\n)*step.shard"):
        step.eval_step(lambda p, x: x @ p["w"])(params, np.ones((8, 16), np.float32))


def test_batches_come_back_split() -> None:
    config = jzero.ZeroConfig(persistence_threshold=0)
    step = jzero.shard_train_step(step_fn, config=config)
    params = step.shard({"w": jnp.ones((16, 8))})
    out = step.eval_step(lambda p, x: x @ p["w"])(params, np.ones((8, 16), np.float32))
    assert out.sharding.spec[0] == "data"


def test_keys_scalars_and_whole_states(placed) -> None:
    step, params = placed
    state = {"params": params, "count": 3, "none": None}

    def noisy(state, batch, key, scale):
        noise = scale * jax.random.normal(key, batch["x"].shape)
        return (batch["x"] + noise) @ state["params"]["w"], state["count"] + 1

    args = {"x": np.ones((8, 16), np.float32)}, jax.random.key(1), 0.5
    got = step.eval_step(noisy)(state, *args)
    wanted = jax.jit(noisy)(step.gather(state), *args)
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5)
    assert int(got[1]) == 4


def test_host_and_loose_parameters_are_taken_too(placed) -> None:
    step, params = placed
    evaluate = step.eval_step(jax.jit(lambda p, x: x @ p["w"]))
    x = np.ones((8, 16), np.float32)
    wanted = evaluate(params, x)
    for loose in (np.asarray(params["w"]), jnp.asarray(np.asarray(params["w"]))):
        np.testing.assert_allclose(evaluate({"w": loose}, x), wanted)


def test_a_training_step_goes_on_after_an_evaluation(placed) -> None:
    step, params = placed
    evaluate = step.eval_step(lambda p, x: x @ p["w"])
    x = np.ones((8, 16), np.float32)
    losses = []
    for _ in range(3):
        params, _ = step(params, x)
        losses.append(float((evaluate(params, x) ** 2).mean()))
    assert losses[0] > losses[1] > losses[2]
