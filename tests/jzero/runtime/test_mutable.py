"""nnx objects become states and come back, shared variables and all."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jzero
from jzero.runtime.mutable import (
    Objects,
    is_mutable,
    merge_states,
    split_states,
    unwrap_nnx_jit,
)


class Tied(nnx.Module):
    def __init__(self, linear: nnx.Linear) -> None:
        self.linear = linear


def linear() -> nnx.Linear:
    return nnx.Linear(4, 4, rngs=nnx.Rngs(0))


def test_what_counts_as_mutable() -> None:
    assert is_mutable(linear()) and is_mutable(nnx.Rngs(0))
    assert not is_mutable({"w": jnp.ones(3)}) and not is_mutable(nnx.State({}))


def test_a_shared_variable_is_held_once_and_stays_shared() -> None:
    shared = linear()
    graphdef, states = split_states((shared, Tied(shared)))
    assert [len(jax.tree.leaves(s)) for s in states] == [2, 0]
    one, other = merge_states(graphdef, states)
    assert other.linear.kernel is one.kernel


def test_a_mutating_function_becomes_pure() -> None:
    model = linear()

    def double(model, factor, *, offset):
        model.bias[...] = model.bias[...] * 0 + factor + offset
        return factor

    objects, args, kwargs = Objects.split((model, 3.0), {"offset": 1.0})
    assert objects is not None
    states, result = jax.jit(objects.pure(double))(*args, **kwargs)
    assert result == 3.0
    assert float(model.bias[...].sum()) == 0.0  # not yet
    objects.update(states)
    assert model.bias[...].tolist() == [4.0] * 4


def test_calls_without_objects_pass_through() -> None:
    assert Objects.split((1, 2), {"a": 3}) == (None, (1, 2), {"a": 3})


def test_a_function_under_nnx_jit_is_taken_out() -> None:
    def step(model):
        return 1

    assert unwrap_nnx_jit(nnx.jit(step)) is step
    assert unwrap_nnx_jit(step) is step


class Noisy(nnx.Module):
    """A model with statistics, dropout and a counter."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(8, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.drop = nnx.Dropout(0.2, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.drop(self.norm(self.linear(x)))


def make_objects() -> tuple[Noisy, nnx.Optimizer]:
    model = Noisy(nnx.Rngs(0, dropout=1))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def train(model, optimizer, x, mode="train"):
    if mode == "eval":
        return model(x).mean()
    value, grads = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
    optimizer.update(model, grads)
    return value


X = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
SHARD_ALL = jzero.ZeroConfig(persistence_threshold=0)


def test_a_step_that_fails_leaves_the_objects_as_they_were() -> None:
    model, optimizer = make_objects()
    step = jzero.shard_train_step(train, config=SHARD_ALL)
    step(model, optimizer, X)
    before = [np.asarray(x) for x in jax.tree.leaves(nnx.state(model, nnx.Param))]
    with pytest.raises(jzero.BatchError):
        step(model, optimizer, X[:10])
    with pytest.raises(TypeError):
        step(model, optimizer, X[:, :3])
    after = jax.tree.leaves(nnx.state(model, nnx.Param))
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    assert np.isfinite(float(step(model, optimizer, X)))


def test_a_variable_that_the_step_adds_is_named() -> None:
    def adds(model, optimizer, x):
        model.extra = nnx.Variable(jnp.zeros(3))
        return train(model, optimizer, x)

    step = jzero.shard_train_step(adds, config=SHARD_ALL)
    with pytest.raises(jzero.StateError, match=r"model\['extra'\](.|\n)*new in"):
        step(*make_objects(), X)


def test_metrics_and_random_streams_are_objects_too() -> None:
    def measured(model, optimizer, *, x, metric, rngs):
        value = train(model, optimizer, x + 0.1 * jax.random.normal(rngs.noise()))
        metric.update(values=value)
        return value

    seen = []
    for wrap in (nnx.jit, lambda f: jzero.shard_train_step(f, config=SHARD_ALL)):
        metric, rngs = nnx.metrics.Average(), nnx.Rngs(noise=3)
        run, objects = wrap(measured), make_objects()
        values = [run(*objects, x=X, metric=metric, rngs=rngs) for _ in range(3)]
        np.testing.assert_allclose(metric.compute(), np.mean(values), rtol=1e-5)
        seen.append(values)
    np.testing.assert_allclose(*seen, rtol=1e-5)


def test_modes_are_static_and_share_the_objects() -> None:
    model, optimizer = make_objects()
    step = jzero.shard_train_step(train, config=SHARD_ALL)
    step(model, optimizer, X)
    kernel = np.asarray(model.linear.kernel[...])
    step(model, optimizer, X, "eval")
    np.testing.assert_array_equal(kernel, model.linear.kernel[...])
    step(model, optimizer, X, mode="train")
    assert not np.array_equal(kernel, model.linear.kernel[...])


def test_evaluation_of_a_model_in_eval_mode() -> None:
    model, optimizer = make_objects()
    step = jzero.shard_train_step(train, config=SHARD_ALL)
    step(model, optimizer, X)
    whole = nnx.merge(nnx.graphdef(model), step.gather(nnx.state(model)))
    model.eval()
    whole.eval()
    evaluate = step.eval_step(lambda model, x: model(x))
    np.testing.assert_allclose(evaluate(model, X), whole(X), rtol=1e-5, atol=1e-6)
