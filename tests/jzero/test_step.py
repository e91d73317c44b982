"""What a user does wrong, and what they are told; nothing of theirs is lost."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jzero

SHARD_ALL = jzero.ZeroConfig(persistence_threshold=0)
TX = optax.adam(1e-2)


def train_step(params: Any, opt_state: Any, x: jax.Array) -> Any:
    def loss(p):
        return ((x @ p["w"]) ** 2).mean() + p["b"].sum() ** 2

    value, grads = jax.value_and_grad(loss)(params)
    updates, opt_state = TX.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


def make_state() -> tuple[Any, Any]:
    params = {"w": jnp.ones((24, 16)), "b": jnp.zeros((16,))}
    return params, TX.init(params)


def batch(rows: int = 16) -> np.ndarray:
    return np.random.default_rng(rows).normal(size=(rows, 24)).astype(np.float32)


def make_step(**settings: Any) -> jzero.TrainStep:
    return jzero.shard_train_step(train_step, config=SHARD_ALL, **settings)


def check_usable(step: jzero.TrainStep, state: Any) -> None:
    """The caller's state survived the failure."""
    *state, loss = step(*state, batch())
    assert np.isfinite(float(loss))
    step(*state, batch())


def test_batch_that_does_not_divide() -> None:
    step = make_step()
    state = step.shard(make_state())
    for _ in range(2):  # also on the quick path
        with pytest.raises(jzero.BatchError, match=r"x\b.*10(.|\n)*8"):
            step(*state, batch(10))
        *state, _ = step(*state, batch())
    with pytest.raises(jzero.BatchError, match="10"):
        step.shard_batch(batch(10))
    check_usable(step, state)


def test_donated_state_names_its_leaves_and_the_remedy() -> None:
    step = make_step()
    old = step.shard(make_state())
    new = step(*old, batch())[:2]
    assert all(x.is_deleted() for x in jax.tree.leaves(old))
    with pytest.raises(jzero.DonationError) as error:
        step(*old, batch())
    for part in ("params['w']", "opt_state[0].count", "Remedy"):
        assert part in str(error.value)
    for use in (step.shard, step.gather):
        with pytest.raises(jzero.DonationError, match=r"\['w'\]"):
            use(old)
    check_usable(step, new)


def test_the_callers_own_arrays_are_never_donated() -> None:
    mine = make_state()
    step = make_step()
    step(*mine, batch())
    step.shard(mine)
    assert not any(x.is_deleted() for x in jax.tree.leaves(mine))


def test_one_buffer_at_two_paths_is_found_before_the_call() -> None:
    def step_fn(state, x):
        return jax.tree.map(lambda p: p + x.mean(), state), x.sum()

    step = jzero.shard_train_step(step_fn, config=SHARD_ALL)
    placed = step.shard({"a": jnp.ones((16,)), "b": jnp.ones((16,))})
    tied = {"a": placed["a"], "b": placed["a"]}
    with pytest.raises(jzero.AliasError) as error:
        step(tied, batch())
    assert "state['b']" in str(error.value)
    assert "state['a']" in str(error.value)
    assert not placed["a"].is_deleted()
    new, _ = step(step.shard(tied), batch())  # shard copies
    np.testing.assert_array_equal(new["a"], new["b"])


def test_state_from_another_mesh() -> None:
    step = make_step()
    few = Mesh(np.array(jax.devices()[:4]), ("data",))
    state = jax.device_put(make_state(), NamedSharding(few, P()))
    with pytest.raises(jzero.PlacementError) as error:
        step(*state, batch())
    for part in ("params['w']", "4 devices", "8 devices", "step.shard"):
        assert part in str(error.value)
    check_usable(step, step.shard(state))


def test_a_leaf_replaced_by_a_python_number_does_not_recompile() -> None:
    def step_fn(state, x):
        return {"w": state["w"] - state["lr"] * x.mean(), "lr": state["lr"]}, x.sum()

    step = jzero.shard_train_step(step_fn, config=SHARD_ALL)
    state, _ = step({"w": jnp.ones((16,)), "lr": 0.1}, batch())
    for rate in (0.2, 0.3):
        state["lr"] = rate
        state, _ = step(state, batch())
    (program,) = step._programs.values()
    assert state["lr"].dtype == jnp.float32
    assert program.state_structs[0].weak_type is False


def test_a_python_number_among_the_data_is_another_program() -> None:
    """Only a scalar of the state, of its own dtype, takes over a program."""

    def step_fn(state, x, scale):
        new = {"w": state["w"] - state["lr"] * scale * x.mean(), "lr": state["lr"]}
        return new, x.sum()

    step = jzero.shard_train_step(step_fn, config=SHARD_ALL)
    scale = jnp.float32(2)
    state, _ = step({"w": jnp.ones((16,)), "lr": jnp.float32(0.1)}, batch(), scale)
    state, _ = step(state | {"lr": 0.2}, batch(), scale)
    (first,) = set(map(id, step._programs.values()))
    state, _ = step(state, batch(), 2.0)  # data that is weakly typed
    assert id(step._programs[list(step._programs)[-1]]) != first
    np.testing.assert_allclose(float(state["lr"]), 0.2, rtol=1e-6)


def test_compile_needs_shapes_alone_and_serves_calls() -> None:
    step = make_step()
    state = step.shard(make_state())
    structs = jax.eval_shape(make_state)
    compiled = step.compile(*structs, jax.ShapeDtypeStruct((16, 24), np.float32))
    (program,) = step._programs.values()
    assert program.executable.compiled is compiled.compiled
    check_usable(step, state)
    assert list(step._programs.values()) == [program]
    with pytest.raises(jzero.BatchError):
        step.compile(*structs, jax.ShapeDtypeStruct((10, 24), np.float32))


def test_gather_returns_whole_arrays() -> None:
    step = make_step()
    state = step.shard(make_state())
    assert not state[0]["w"].is_fully_replicated
    whole = step.gather(state)
    np.testing.assert_array_equal(whole[0]["w"], np.ones((24, 16)))
    assert isinstance(whole[0]["w"], np.ndarray)


def test_init_gives_the_same_numbers_as_one_device() -> None:
    def create(key):
        params = {"w": jax.random.normal(key, (24, 16)), "b": jnp.zeros((16,))}
        return params, TX.init(params)

    step = make_step()
    state = step.init(create, jax.random.key(3))
    wanted = create(jax.random.key(3))
    np.testing.assert_allclose(state[0]["w"], wanted[0]["w"], rtol=1e-6)
    assert state[0]["w"].sharding.spec == P("data")
    assert state[1][0].mu["w"].sharding.spec == P("data")
    check_usable(step, state)


def test_plan_and_lower_work_on_shapes_alone() -> None:
    step = make_step()
    shapes = jax.eval_shape(make_state)
    x = jax.ShapeDtypeStruct((16, 24), jnp.float32)
    plan = step.plan(*shapes, x)
    assert "params['w']" in str(plan)
    assert plan.local_bytes < plan.global_bytes / 4
    assert "sharding" in step.lower(*shapes, x).as_text()


def test_an_error_of_the_step_itself_comes_through() -> None:
    def step_fn(state, x):
        raise KeyError("mine")

    step = jzero.shard_train_step(step_fn)
    with pytest.raises(KeyError, match="mine"):
        step(jnp.ones((8,)), batch())


class Named(NamedTuple):
    loss: Any
    params: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Record:
    params: Any
    loss: Any


def descend(params: Any, x: jax.Array) -> Any:
    """One step of gradient descent, returned as a pair."""

    def loss(p):
        return ((x @ p["w"] + p["b"][None]) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def start() -> Any:
    return {"w": jnp.ones((24, 16)), "b": jnp.zeros((16,))}


def after_two() -> Any:
    return descend(descend(start(), batch())[0], batch())[0]


def assert_close(got: Any, wanted: Any) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


RESULTS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "list": (lambda new, loss: [new, loss], lambda r: r[0]),
    "dict": (lambda new, loss: {"s": new, "a": loss}, lambda r: r["s"]),
    "NamedTuple": (lambda new, loss: Named(loss, new), lambda r: r.params),
    "dataclass": (Record, lambda r: r.params),
    "deep": (lambda new, loss: ((loss, {"s": [new]}),), lambda r: r[0][1]["s"][0]),
    "bare": (lambda new, loss: new, lambda r: r),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_results_of_every_kind(kind: str) -> None:
    build, pick = RESULTS[kind]
    step = jzero.shard_train_step(lambda s, x: build(*descend(s, x)), config=SHARD_ALL)
    state = step.init(start)
    for _ in range(2):
        result = step(state, batch())
        state = pick(result)
    assert type(result) is type(build(1, 2)) or kind == "bare"
    assert_close(state, after_two())


def test_arguments_by_keyword_in_any_order() -> None:
    step = jzero.shard_train_step(descend, config=SHARD_ALL)
    state, _ = step(x=batch(), params=step.init(start))
    state, _ = step(params=state, x=batch())
    assert_close(state, after_two())
    state, _ = step(state, x=batch())


def test_a_step_without_data() -> None:
    step = jzero.shard_train_step(
        lambda s: jax.tree.map(lambda p: p * 2, s), config=SHARD_ALL
    )
    assert_close(step(step(step.init(start)))["w"], 4 * np.ones((24, 16)))


def test_an_array_of_the_user_s_in_the_closure_stays_where_it_is() -> None:
    table = jax.device_put(jnp.arange(24.0), jax.devices()[3])
    step = jzero.shard_train_step(
        lambda s, x: descend(s, x + table[None]), config=SHARD_ALL
    )
    state, _ = step(start(), batch())
    assert_close(state, descend(start(), batch() + np.arange(24.0)[None])[0])
    assert table.devices() == {jax.devices()[3]}


@pytest.mark.parametrize("num_devices", [1, 3, 5])
def test_odd_numbers_of_devices(num_devices: int) -> None:
    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("data",))
    step = jzero.shard_train_step(descend, config=SHARD_ALL, mesh=mesh)
    state, _ = step(step.init(start), batch(15))
    assert_close(state, descend(start(), batch(15))[0])


def test_a_result_that_holds_inputs_and_one_value_twice() -> None:
    def step_fn(state, x):
        new, _ = descend(state, x)
        new = {**new, "b": state["b"]}
        return new, {"w": new["w"], "again": new["w"], "old": state["b"], "x": x.T}

    step = jzero.shard_train_step(step_fn, config=SHARD_ALL)
    state = step.init(start)
    for _ in range(2):
        state, rest = step(state, batch())
        assert_close(rest["again"], state["w"])
        assert_close(rest["old"], np.zeros(16))
        assert_close(rest["x"], batch().T)


def test_arguments_that_a_step_swaps() -> None:
    def step_fn(a, b, x):
        return b, x.sum(), a

    a, b = {"m": jnp.ones((16,))}, {"n": jnp.zeros((16,))}
    step = jzero.shard_train_step(step_fn, config=SHARD_ALL)
    for _ in range(2):
        b, _, a = step(a, b, batch())
    assert_close((a, b), ({"m": np.ones(16)}, {"n": np.zeros(16)}))


def test_a_state_that_is_one_tuple() -> None:
    def step_fn(state, x):
        params, momentum = state
        new, loss = descend(params, x)
        return (new, jax.tree.map(jnp.add, momentum, params)), loss

    step = jzero.shard_train_step(step_fn, config=SHARD_ALL)
    state = step.init(lambda: (start(), start()))
    for _ in range(2):
        state, _ = step(state, batch())
    assert_close(state[0], after_two())


def test_committed_batches_are_moved_and_stay_the_user_s() -> None:
    step = jzero.shard_train_step(descend, config=SHARD_ALL)
    state = step.init(start)
    for where in (jax.devices()[3], NamedSharding(step._settings.mesh, P())):
        x = jax.device_put(batch(), where)
        state, _ = step(state, x)
        assert not x.is_deleted()
    assert_close(state, after_two())


def test_double_precision() -> None:
    with jax.enable_x64(True):
        step = jzero.shard_train_step(descend, config=SHARD_ALL)
        state = step.init(lambda: jax.tree.map(lambda x: x.astype(float), start()))
        state, loss = step(state, batch().astype(np.float64))
        assert state["w"].dtype == loss.dtype == np.float64


def test_a_jitted_method_of_a_trainer() -> None:
    class Trainer:
        rate = 1.0

        @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
        def train_step(self, state, x):
            return descend(state, self.rate * x)

    step = jzero.shard_train_step(Trainer().train_step, config=SHARD_ALL)
    state = step.init(start)
    for _ in range(2):
        state, _ = step(state, batch())
    assert_close(state, after_two())
