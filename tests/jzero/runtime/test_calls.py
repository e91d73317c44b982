"""Calls in every spelling, taken apart and put together again."""

from __future__ import annotations

import enum
import functools

import jax
import numpy as np
import pytest

from jzero.errors import ConfigError
from jzero.runtime.calls import StepFunction


class Mode(enum.Enum):
    TRAIN = 1


def step(state, x, mode="train", *, flag=False):
    return state, x, mode, flag


def test_positional_and_keyword_arguments_come_back_in_place() -> None:
    function = StepFunction(step, static_argnames=("flag",))
    call = function.split((1.0, np.ones(3), "eval"), {"flag": True})
    assert call.names == ("state", "x")
    assert call.statics == ((2, "eval"), ("flag", True))
    args, kwargs = function.join(call, ("S", "X"))
    assert (args, kwargs) == (["S", "X", "eval"], {"flag": True})


def test_a_jitted_function_says_what_is_static() -> None:
    jitted = functools.partial(jax.jit, static_argnums=2, static_argnames="flag")(step)
    function = StepFunction(jitted)
    assert function.function is step
    call = function.split((1.0, 2.0, 7), {"flag": 1})
    assert call.statics == ((2, 7), ("flag", 1))


def test_what_cannot_be_an_array_is_static() -> None:
    call = StepFunction(step).split((1.0, Mode.TRAIN, abs), {})
    assert call.statics == ((1, Mode.TRAIN), (2, abs))


def test_negative_positions_and_positions_by_name() -> None:
    function = StepFunction(lambda a, b: (a, b), static_argnums=-1)
    assert function.split((1.0, 2), {}).statics == ((1, 2),)
    assert function.split((1.0,), {"b": 2}).statics == (("b", 2),)


def test_names_that_are_no_parameters_are_refused() -> None:
    with pytest.raises(ConfigError, match="mood"):
        StepFunction(step, static_argnames="mood")
    with pytest.raises(ConfigError, match="int"):
        StepFunction(step, static_argnums="mode")  # type: ignore


class Trainer:
    """A step as a method, jitted the usual way, with the object static."""

    scale = 2.0

    @functools.partial(jax.jit, static_argnums=(0, 3), donate_argnums=1)
    def jitted(self, state, x, mode="train"):
        return state * self.scale, x, mode

    def plain(self, state, x, mode="train"):
        return state * self.scale, x, mode

    def __call__(self, state, x, mode="train"):
        return state * self.scale, x, mode


@pytest.mark.parametrize("name", ("jitted", "plain", "__call__"))
def test_methods_keep_their_object(name: str) -> None:
    trainer = Trainer()
    function = StepFunction(getattr(trainer, name))
    call = function.split((1.0, 2.0, "eval"), {})
    assert call.names == ("state", "x")
    assert call.statics == ((2, "eval"),)
    args, kwargs = function.join(call, call.values)
    assert function.function(*args, **kwargs) == (2.0, 2.0, "eval")


def test_an_object_that_is_called_is_a_function() -> None:
    call = StepFunction(Trainer()).split((1.0,), {"x": 2.0})
    assert (call.names, call.keys) == (("state", "x"), (0, "x"))


def test_a_partial_has_only_the_parameters_that_are_left() -> None:
    function = StepFunction(functools.partial(step, flag=True))
    call = function.split((1.0, 2.0, "eval"), {})
    assert call.names == ("state", "x")
    assert function.function(*function.join(call, call.values)[0])[3] is True


def test_the_order_of_keywords_does_not_matter() -> None:
    function = StepFunction(step)
    one = function.split((), {"state": 1.0, "x": 2.0})
    other = function.split((), {"x": 2.0, "state": 1.0})
    assert (one.keys, one.values) == (other.keys, other.values)


def test_a_module_that_holds_arrays_is_data_and_one_that_does_not_is_static() -> None:
    @jax.tree_util.register_pytree_node_class
    class Layer:
        def __init__(self, w):
            self.w = w

        def __call__(self, x):
            return self.w * x

        def tree_flatten(self):
            return (self.w,), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    layer = Layer(np.ones(3))
    call = StepFunction(step).split((layer, np.tanh), {})
    assert call.values == (layer,)
    assert call.statics == ((1, np.tanh),)


def test_absent_arguments_stay_absent() -> None:
    function = StepFunction(step)
    call = function.split((1.0, None), {})
    assert call.values == (1.0, None)
    assert jax.tree.leaves(call.values) == [1.0]
    assert function.join(call, call.values) == ([1.0, None], {})


def test_a_function_of_anything_takes_anything() -> None:
    def loose(*args, **kwargs):
        return args, kwargs

    function = StepFunction(loose, static_argnames="mode")
    call = function.split((1.0, 2.0), {"mode": 3, "k": 4.0})
    assert call.names == ("arg0", "arg1", "k")
    assert call.statics == (("mode", 3),)
