"""The search for parameters, apart from the roles of the other leaves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from jzero.errors import ParamsError
from jzero.plan.names import read_state_names
from jzero.plan.params import find_params, select_params
from tests.jzero.plan.states import describe, small_params

W = jnp.ones((4, 4))


def _found(**args: Any) -> dict[str, str]:
    """Returns why each parameter was found, by path."""
    leaves = describe(**args)
    found = find_params(leaves, read_state_names(leaves, tuple(args)))
    return {leaves[i].path: param.why for i, param in found.items()}


def test_the_reason_says_how_it_was_found() -> None:
    params = {"a": W, "frozen_b": jnp.ones((2, 2))}
    moments = jax.eval_shape(optax.adam(1e-3).init, {"a": W})
    assert set(_found(params=params).values()) == {"in a tree of parameters"}
    found = _found(p=params, s=moments)
    assert found["p['a']"] == "an optimizer's state repeats its path and shape"
    assert found["p['frozen_b']"].startswith("beside parameters")
    assert _found(p=params)["p['a']"].startswith("a float array")


def test_only_floats() -> None:
    assert _found(params={"table": jnp.ones((2, 2), jnp.int32), "w": W}).keys() == {
        "params['w']"
    }


def test_running_statistics_of_an_nnx_model() -> None:
    norm = {"mean": jnp.ones(4), "var": jnp.ones(4), "scale": jnp.ones(4)}
    assert _found(model={"norm": norm}).keys() == {"model['norm']['scale']"}
    # An optimizer repeats them: they are trained after all.
    moments = jax.eval_shape(optax.adam(1e-3).init, {"norm": norm})
    assert len(_found(model={"norm": norm}, opt_state=moments)) == 3
    assert len(_found(p={"mean": jnp.ones(4), "w": W})) == 2


def test_copy_nearer_to_the_root_is_the_parameter() -> None:
    params = small_params()
    state = optax.contrib.schedule_free_adamw(1e-3).init(params)
    # A dict hides the fields' names, as nnx and serialisation do.
    inner = jax.tree.map(jnp.zeros_like, state.base_optimizer_state[0].nu)
    args = {"p": params, "s": {"deep": {"z": params}}, "opt": {"nu": inner}}
    assert all(path.startswith("p[") for path in _found(**args))


def test_nothing_to_find() -> None:
    assert _found(opt_state={"w": W}) == {}
    assert _found(state={"n": 3}) == {}


def test_selection_prefers_what_is_outside_the_optimizer() -> None:
    leaves = describe(params={"w": W}, opt_state={"mu": {"w": W}})
    names = read_state_names(leaves, ("params", "opt_state"))
    assert set(select_params(leaves, names, r"\['w'\]")) == {0}
    assert set(select_params(leaves, names, "mu")) == {1}
    with pytest.raises(ParamsError, match="the predicate matches no leaf"):
        select_params(leaves, names, lambda path: False)
