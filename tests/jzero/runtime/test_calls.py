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
