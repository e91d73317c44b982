"""Looking into functions that are already under `jax.jit`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jzero.compat.jit import is_jitted, unwrap_jit, with_trees


def step(state: Any, batch: Any, mode: str = "train", *, scale: int = 1) -> Any:
    """A step."""
    return state


def test_a_plain_function_is_itself() -> None:
    assert not is_jitted(step)
    assert unwrap_jit(step) == (step, (), ())


@pytest.mark.parametrize(
    ("options", "nums", "names"),
    [
        ({}, (), ()),
        ({"donate_argnums": (0,)}, (), ()),
        ({"static_argnums": 2}, (2,), ("mode",)),
        ({"static_argnames": "mode"}, (2,), ("mode",)),
        ({"static_argnames": ("scale",)}, (), ("scale",)),
        ({"static_argnames": ("mode", "scale")}, (2,), ("mode", "scale")),
    ],
)
def test_static_arguments_are_read(
    options: dict[str, Any], nums: tuple[int, ...], names: tuple[str, ...]
) -> None:
    jitted = jax.jit(step, **options)
    assert is_jitted(jitted)
    assert unwrap_jit(jitted) == (step, nums, names)


def test_layers_of_jit_are_all_taken_off() -> None:
    outer = jax.jit(jax.jit(step, static_argnames="mode"), static_argnames="scale")
    function, nums, names = unwrap_jit(outer)
    assert function is step
    assert (nums, names) == ((2,), ("mode", "scale"))


def test_a_decorator_of_the_user_is_kept() -> None:
    @functools.wraps(step)
    def logged(*args: Any, **kwargs: Any) -> Any:
        return step(*args, **kwargs)

    assert not is_jitted(logged)
    assert unwrap_jit(logged)[0] is logged
    assert unwrap_jit(jax.jit(logged))[0] is logged
    assert not is_jitted(functools.partial(step, mode="eval"))


class Trainer:
    """Steps as methods, the way many training loops hold them."""

    def __init__(self) -> None:
        self.on_instance = jax.jit(self.plain, static_argnames="mode")

    def plain(self, state: Any, batch: Any, mode: str = "train") -> Any:
        return self, state

    @functools.partial(jax.jit, static_argnums=(0, 3))
    def by_number(self, state: Any, batch: Any, mode: str = "train") -> Any:
        return self, state

    @functools.partial(jax.jit, static_argnames=("self", "mode"))
    def by_name(self, state: Any, batch: Any, mode: str = "train") -> Any:
        return self, state

    @functools.partial(jax.jit, static_argnums=(0, -1))
    def from_the_end(self, state: Any, batch: Any, mode: str = "train") -> Any:
        return self, state


@pytest.mark.parametrize(
    ("name", "nums", "names"),
    [
        ("plain", (), ()),
        ("on_instance", (2,), ("mode",)),
        ("by_number", (2,), ("mode",)),
        ("by_name", (2,), ("mode",)),
    ],
)
def test_a_jitted_method_keeps_its_object(
    name: str, nums: tuple[int, ...], names: tuple[str, ...]
) -> None:
    trainer = Trainer()
    function, found_nums, found_names = unwrap_jit(getattr(trainer, name))
    assert not is_jitted(function)
    assert function("state", "batch") == (trainer, "state")
    assert (found_nums, found_names) == (nums, names)


def test_arguments_of_a_method_counted_from_the_end() -> None:
    _, nums, names = unwrap_jit(Trainer().from_the_end)
    assert -1 in nums or "mode" in names  # as the JAX version tells


def test_a_lowered_function_with_other_trees() -> None:
    """Of the same leaves: the program is not lowered again."""
    lowered = jax.jit(lambda xs: [xs[0] + xs[1], xs[0] * 2]).lower(
        [jnp.ones(3), jnp.arange(3.0)]
    )
    trees = ({"a": 0, "b": 0},), ("sum", {"twice": 0})
    given = with_trees(lowered, *map(jax.tree.structure, trees))
    assert given.as_text() == lowered.as_text()
    total, rest = given.compile()({"a": jnp.ones(3), "b": jnp.arange(3.0)})
    assert total.tolist() == [1, 2, 3]
    assert rest["twice"].tolist() == [2, 2, 2]


def test_trees_of_another_number_of_leaves() -> None:
    lowered = jax.jit(lambda x: [x, x]).lower(jnp.ones(3))
    one, two = jax.tree.structure((0,)), jax.tree.structure([0, 0])
    with pytest.raises(ValueError, match="3 results for 2"):
        with_trees(lowered, one, jax.tree.structure([0, 0, 0]))
    with pytest.raises(ValueError):
        with_trees(lowered, two, two)
