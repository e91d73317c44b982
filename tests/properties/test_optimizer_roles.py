"""Roles of the state of every optimizer, however the step spells its state."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest

from tests.jzero.plan.states import (
    linen_state,
    owner_paths,
    paths,
    roles_of,
    small_params,
)

OPTIMIZERS: dict[str, optax.GradientTransformation] = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(1e-3),
    "adamw_clip": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    "lion": optax.lion(1e-3),
    "lamb": optax.lamb(1e-3),
    "adafactor": optax.adafactor(1e-3, min_dim_size_to_factor=8),
    "muon": optax.contrib.muon(0.1),
    "rmsprop": optax.rmsprop(1e-3, momentum=0.9),
    "adagrad": optax.adagrad(1e-3),
    "schedule_free": optax.contrib.schedule_free_adamw(1e-3),
    "multi_steps": optax.MultiSteps(optax.adam(1e-3), 4).gradient_transformation(),
    "masked": optax.masked(
        optax.adam(1e-3), lambda p: jax.tree.map(lambda x: x.ndim > 1, p)
    ),
    "multi_transform": optax.multi_transform(
        {"train": optax.adam(1e-3), "frozen": optax.set_to_zero()},
        lambda p: jax.tree.map(lambda x: "train" if x.ndim > 1 else "frozen", p),
    ),
    "inject_hyperparams": optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
    "apply_if_finite": optax.apply_if_finite(optax.adam(1e-3), 3),
    "ema": optax.chain(optax.adam(1e-3), optax.ema(0.9)),
}


def _assert_mirrors_are_sound(
    roles: dict[str, Any], shapes: dict[str, tuple[int, ...]]
) -> None:
    """Every owner is a parameter of the same shape with the same last key."""
    for path, owner in owner_paths(roles).items():
        assert roles[owner].role == "parameter"
        assert shapes[path] == shapes[owner]
        assert path.split("[")[-1] == owner.split("[")[-1]


def _shapes(**args: Any) -> dict[str, tuple[int, ...]]:
    return {
        name + jax.tree_util.keystr(path): np.shape(leaf)
        for name, tree in args.items()
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("spelling", ["named", "unnamed", "one_tuple"])
def test_every_optimizer_in_every_spelling(name: str, spelling: str) -> None:
    params = small_params()
    opt_state = jax.eval_shape(OPTIMIZERS[name].init, params)
    if spelling == "named":
        args: dict[str, Any] = {"params": params, "opt_state": opt_state}
        root = "params"
    elif spelling == "unnamed":
        args, root = {"p": params, "s": opt_state}, "p"
    else:
        args, root = {"carry": (params, opt_state)}, "carry[0]"
    roles, shapes = roles_of(**args), _shapes(**args)
    assert paths(roles, "parameter") == {
        f"{root}['dense']['bias']",
        f"{root}['dense']['kernel']",
        f"{root}['head']['kernel']",
    }
    _assert_mirrors_are_sound(roles, shapes)
    # Whatever the optimizer holds in a parameter's place and shape has an owner.
    owners = owner_paths(roles)
    for param in paths(roles, "parameter"):
        for path in set(roles) - {param}:
            if path.endswith(param[len(root) :]) and shapes[path] == shapes[param]:
                assert owners[path] == param
    if name == "adafactor":
        factors = {path for path in roles if "v_row" in path or "v_col" in path}
        assert factors and factors <= paths(roles, "optimizer")
        assert not factors & set(owners)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_linen_train_state(name: str) -> None:
    state = linen_state(OPTIMIZERS[name])
    roles, shapes = roles_of(state=state), _shapes(state=state)
    expected = {path for path in roles if path.startswith("state.params[")}
    assert len(expected) == 6
    assert paths(roles, "parameter") == expected
    _assert_mirrors_are_sound(roles, shapes)
    for path in roles:
        if path.startswith((".batch_stats", "state.batch_stats", "state.key")):
            assert roles[path].role == "other"
    assert roles["state.step"].role == "other"
