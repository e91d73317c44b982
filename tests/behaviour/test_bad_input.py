"""What a user does wrong: every leaf named, numbers and remedy; nothing is lost."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jzero
from tests.end_to_end.oracle import SHARD_ALL, mesh_of

TX = optax.adam(1e-2)


def make_state() -> Any:
    params = {"w": jnp.ones((24, 16)), "b": jnp.zeros((16,))}
    return {"params": params, "opt": TX.init(params)}


def good_step(state: Any, batch: Any) -> Any:
    def loss(p: Any) -> jax.Array:
        return ((batch["x"] @ p["w"] + p["b"][None]) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(state["params"])
    updates, opt = TX.update(grads, state["opt"])
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "opt": opt}, {"loss": value}


def a_batch(num_rows: int = 16) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0).normal
    return {
        "x": draw(size=(num_rows, 24)).astype(np.float32),
        "y": np.arange(num_rows, dtype=np.int32),
    }


def check_still_usable(state: Any, stage: int = 3) -> None:
    """The caller's arrays are whole, and a good step takes them."""
    assert not any(x.is_deleted() for x in jax.tree.leaves(state))
    step = jzero.shard_train_step(good_step, stage=stage, config=SHARD_ALL)
    _, metrics = step(state, a_batch())
    assert np.isfinite(float(metrics["loss"]))


def refusal(kind: type[Exception], step_fn: Any, state: Any, **settings: Any) -> str:
    """Returns what a call is refused with; checks that its state survives."""
    settings.setdefault("config", SHARD_ALL)
    step = jzero.shard_train_step(step_fn, **settings)
    for _ in range(2):
        with pytest.raises(kind) as error:
            step(state, a_batch())
    assert isinstance(error.value, (ValueError, TypeError))
    text = str(error.value)
    assert "Remedy: " in text
    check_still_usable(state)
    return text


def changed(**leaves: Any) -> Any:
    """A step that returns its state with some parameters replaced."""

    def step(state: Any, batch: Any) -> Any:
        params = dict(state["params"])
        for name, change in leaves.items():
            params[name] = change(params[name])
        return {**state, "params": params}, {"loss": batch["x"].mean()}

    return step


@pytest.mark.parametrize("is_placed", (False, True))
@pytest.mark.parametrize("stage", range(4))
def test_leaves_that_change_shape_or_dtype(stage: int, is_placed: bool) -> None:
    step_fn = changed(w=lambda w: w.astype(jnp.bfloat16), b=lambda b: b[:4])
    state = make_state()
    if is_placed:
        state = jzero.shard_train_step(good_step, stage=stage).shard(state)
    text = refusal(jzero.StateError, step_fn, state, stage=stage)
    assert "state['params']['w']  float32[24, 16] becomes bfloat16[24, 16]" in text
    assert "state['params']['b']  float32[16] becomes float32[4]" in text


def test_leaves_that_come_and_go() -> None:
    def step_fn(state: Any, batch: Any) -> Any:
        params = {"w": state["params"]["w"], "bias": state["params"]["b"]}
        return {**state, "params": params}, {"loss": batch["x"].mean()}

    text = refusal(jzero.StateError, step_fn, make_state())
    assert "state['params']['b']     float32[16] is missing from the new state" in text
    assert "state['params']['bias']  float32[16] is new in the output" in text


@pytest.mark.parametrize("nothing", (lambda s, b: b["x"].mean(), lambda s, b: None))
def test_no_state_is_returned(nothing: Any) -> None:
    text = refusal(jzero.StateError, nothing, make_state())
    for part in ("returns no state", "state", "batch", "output", "new_state, metrics"):
        assert part in text


def test_state_argnums_of_what_does_not_come_back() -> None:
    text = refusal(jzero.StateError, good_step, make_state(), state_argnums=1)
    assert "state_argnums names argument 'batch'" in text


def test_state_argnums_out_of_range() -> None:
    text = refusal(jzero.ConfigError, good_step, make_state(), state_argnums=5)
    assert "state_argnums=(5,)" in text


def test_no_parameters() -> None:
    config = jzero.ZeroConfig(params=r"\['kernel'\]")
    text = refusal(jzero.ParamsError, good_step, make_state(), config=config)
    for part in ("kernel", "state['params']['w']", "state['params']['b']"):
        assert part in text

    def count(state: Any, batch: Any) -> Any:
        return jax.tree.map(lambda n: n + 1, state), batch["x"].mean()

    numbers = {"n": jnp.zeros((16,), jnp.int32), "m": jnp.zeros((), jnp.int32)}
    with pytest.raises(jzero.ParamsError, match=r"No parameters") as error:
        jzero.shard_train_step(count)(numbers, a_batch())
    for part in ("state['n']", "int32[16]", "state['m']", "Remedy"):
        assert part in str(error.value)


def test_arrays_that_could_all_be_the_batch() -> None:
    state = make_state()
    step = jzero.shard_train_step(good_step, config=SHARD_ALL)
    batch = {**a_batch(), "y": np.arange(10)}
    with pytest.raises(jzero.BatchError) as error:
        step(state, batch)
    for part in ("batch['x']", "(16, 24)", "batch['y']", "(10,)", "batch_argnums"):
        assert part in str(error.value)
    check_still_usable(state)


@pytest.mark.parametrize("stage", (0, 3))
def test_batch_that_does_not_divide(stage: int) -> None:
    step = jzero.shard_train_step(good_step, stage=stage, config=SHARD_ALL)
    state = step.shard(make_state())
    for call in (
        lambda: step(state, a_batch(12)),
        lambda: step.shard_batch(a_batch(12)),
        lambda: step.lower(state, a_batch(12)),
        lambda: step.plan(state, a_batch(12)),
    ):
        with pytest.raises(jzero.BatchError) as error:
            call()
        for part in ("batch['x']", "batch['y']", "12", "8 devices", "8 or 16"):
            assert part in str(error.value)
    step(state, a_batch())


@pytest.mark.parametrize("num_devices", (1, 2, 4))
def test_state_from_another_mesh(num_devices: int) -> None:
    mesh = mesh_of(num_devices) if num_devices > 1 else Mesh(jax.devices()[:1], "data")
    state = jax.device_put(make_state(), NamedSharding(mesh, P()))
    step = jzero.shard_train_step(good_step, config=SHARD_ALL)
    if num_devices == 1:  # where every new array is: placed without a word
        new, _ = step(state, a_batch())
        assert not any(x.is_deleted() for x in jax.tree.leaves(state))
        assert new["params"]["w"].sharding.spec == P("data")
        return
    with pytest.raises(jzero.PlacementError) as error:
        step(state, a_batch())
    for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]:
        assert f"state{jax.tree_util.keystr(path)} " in str(error.value)
    for part in (f"on {num_devices} devices", "8 devices", "step.shard(state)"):
        assert part in str(error.value)
    check_still_usable(step.shard(state))


def test_a_state_of_one_step_given_to_another_mesh() -> None:
    """As when a run goes on with fewer devices."""
    eight = jzero.shard_train_step(good_step, config=SHARD_ALL)
    four = jzero.shard_train_step(good_step, config=SHARD_ALL, mesh=mesh_of(4))
    state, _ = eight(make_state(), a_batch())
    with pytest.raises(jzero.PlacementError, match="4 devices"):
        four(state, a_batch())
    moved = four.shard(state)
    new, _ = four(moved, a_batch())
    assert len(new["params"]["w"].sharding.device_set) == 4
    eight(state, a_batch())


def test_donated_states_are_named_wherever_they_are_used() -> None:
    step = jzero.shard_train_step(good_step, config=SHARD_ALL)
    old = step.shard(make_state())
    new, _ = step(old, a_batch())
    for use in (lambda: step(old, a_batch()), lambda: step.shard(old)):
        with pytest.raises(jzero.DonationError) as error:
            use()
        for part in ("['params']['w']", "float32[24, 16]", "Remedy: "):
            assert part in str(error.value)
    with pytest.raises(jzero.DonationError, match=r"\['params'\]\['w'\]"):
        step.gather(old)
    step(new, a_batch())


def test_an_error_inside_of_the_step_comes_through_and_loses_nothing() -> None:
    def step_fn(state: Any, batch: Any) -> Any:
        return good_step(state, {"x": batch["x"][:, :7]})

    state = jzero.shard_train_step(good_step, config=SHARD_ALL).shard(make_state())
    step = jzero.shard_train_step(step_fn, config=SHARD_ALL)
    with pytest.raises(TypeError, match=r"dot_general.*\(7,\)"):
        step(state, a_batch())
    check_still_usable(state)


def test_a_wrong_call_after_good_ones_keeps_the_state() -> None:
    step = jzero.shard_train_step(good_step, config=SHARD_ALL)
    state, _ = step(make_state(), a_batch())
    with pytest.raises(TypeError):
        step(state)
    with pytest.raises(TypeError):
        step(state, a_batch(), 3, 4)
    with pytest.raises((TypeError, ValueError)):
        step(state, {"x": a_batch()["x"][:, :7], "y": a_batch()["y"]})
    with pytest.raises(jzero.BatchError):
        step(state, a_batch(3))
    with pytest.raises((TypeError, KeyError)):
        step({"params": state["params"]}, a_batch())
    step(state, a_batch())


def test_settings_that_do_not_exist() -> None:
    for stage in (4, -1):
        with pytest.raises(jzero.StageError, match=f"{stage}"):
            jzero.shard_train_step(good_step, stage=stage)
    with pytest.raises(jzero.MeshError, match=r"'model'.*\n?.*'data'"):
        jzero.shard_train_step(good_step, mesh=jax.make_mesh((8,), ("model",)))
    with pytest.raises(jzero.MeshError, match="replica"):
        jzero.shard_train_step(
            good_step, config=jzero.ZeroConfig(batch_axis=("replica", "data"))
        )
    with pytest.raises(TypeError):
        jzero.shard_train_step(good_step, stages=3)  # type: ignore[call-arg]
