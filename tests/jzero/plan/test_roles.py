"""Roles on the states that flax and optax really build."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.tree_util import register_dataclass

from jzero.errors import ParamsError
from jzero.plan.leaves import LeafFacts
from jzero.plan.roles import assign_roles
from tests.jzero.plan.states import (
    NormMlp,
    owner_paths,
    paths,
    roles_of,
    small_params,
)


def test_named_params_with_ema_and_key() -> None:
    params = small_params()
    roles = roles_of(
        params=params,
        opt_state=jax.eval_shape(optax.adam(1e-3).init, params),
        ema=params,
        key=jax.random.key(0),
    )
    assert owner_paths(roles)["ema['head']['kernel']"] == "params['head']['kernel']"
    assert roles["ema['dense']['bias']"].role == "optimizer"
    assert roles["key"].role == "other"


def test_owner_is_the_longest_common_ending() -> None:
    params = {"w": jnp.ones((4, 4)), "layer": {"w": jnp.ones((4, 4))}}
    opt_state = jax.eval_shape(optax.adam(1e-3).init, params)
    owners = owner_paths(roles_of(p=params, s=opt_state))
    assert owners["s[0].mu['layer']['w']"] == "p['layer']['w']"
    assert owners["s[0].mu['w']"] == "p['w']"


def test_variables_hold_parameters_and_statistics() -> None:
    variables = {
        "params": {"norm": {"scale": jnp.ones(8)}},
        "batch_stats": {"norm": {"mean": jnp.ones(8), "var": jnp.ones(8)}},
    }
    opt_state = jax.eval_shape(optax.adam(1e-3).init, variables["params"])
    roles = roles_of(variables=variables, opt_state=opt_state)
    assert paths(roles, "parameter") == {"variables['params']['norm']['scale']"}
    assert paths(roles, "other") == {
        "variables['batch_stats']['norm']['mean']",
        "variables['batch_stats']['norm']['var']",
        "opt_state[0].count",
    }
    owners = owner_paths(roles)
    assert owners["opt_state[0].mu['norm']['scale']"] in paths(roles, "parameter")


def test_lookahead_trains_the_fast_weights() -> None:
    params = optax.LookaheadParams.init_synced(small_params())
    tx = optax.lookahead(optax.adam(1e-3), 5, 0.5)
    for args in (
        {"params": params, "opt_state": jax.eval_shape(tx.init, params)},
        {"carry": (params, jax.eval_shape(tx.init, params))},
    ):
        roles = roles_of(**args)
        assert all(".fast[" in path for path in paths(roles, "parameter"))
        assert len(paths(roles, "parameter")) == 3
        owners = owner_paths(roles)
        slow = [path for path in roles if ".slow[" in path]
        assert slow and all(path in owners for path in slow)


@pytest.mark.parametrize("tx", [optax.sgd(0.1), optax.adam(1e-3)], ids=["sgd", "adam"])
@pytest.mark.parametrize("spelling", ["two", "pair", "both"])
def test_nnx_split_state(tx: optax.GradientTransformation, spelling: str) -> None:
    model = NormMlp(nnx.Rngs(0))
    if spelling == "both":
        args = {"o": nnx.split(nnx.ModelAndOptimizer(model, tx, wrt=nnx.Param))[1]}
    else:
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
        if spelling == "pair":
            args = {"graph_state": nnx.split((model, optimizer))[1]}
        else:
            args = {"model": nnx.state(model), "optimizer": nnx.state(optimizer)}
    roles = roles_of(**args)
    parameters = paths(roles, "parameter")
    assert len(parameters) == 6, parameters
    assert not any("mean" in path or "var" in path for path in parameters)
    assert not any("opt_state" in path for path in parameters)
    statistics = [p for p in roles if "['mean']" in p or "['var']" in p]
    assert len(statistics) == 2
    assert all(roles[path].role == "other" for path in statistics)
    mirrors = [path for path in roles if "['mu']" in path]
    assert set(mirrors) <= set(owner_paths(roles))


def test_frozen_layers_are_parameters_too() -> None:
    """A base without moments must still be sharded (LoRA)."""
    params = {
        "base": jnp.ones((24, 16)),
        "lora": {"a": jnp.ones((16, 4)), "b": jnp.ones((4, 16))},
    }
    tx = optax.multi_transform(
        {"train": optax.adam(1e-3), "freeze": optax.set_to_zero()},
        {"base": "freeze", "lora": "train"},
    )
    opt_state = jax.eval_shape(tx.init, params)
    for args in (
        {"params": params, "opt_state": opt_state},
        {"p": params, "s": opt_state},
        {"carry": (params, opt_state)},
    ):
        roles = roles_of(**args)
        assert len(paths(roles, "parameter")) == 3
        assert any("base" in path for path in paths(roles, "parameter"))


def test_bare_array() -> None:
    w = jnp.ones((8, 4))
    roles = roles_of(w=w)
    assert roles["w"].role == "parameter"
    opt_state = jax.eval_shape(optax.adam(1e-3).init, w)
    for args in ({"w": w, "opt_state": opt_state}, {"carry": (w, opt_state)}):
        roles = roles_of(**args)
        assert len(paths(roles, "parameter")) == 1
        assert len(owner_paths(roles)) == 2


def test_plain_sgd_takes_every_float_array() -> None:
    state = {
        "w": jnp.ones((4, 4)),
        "b": jnp.ones(4),
        "nested": [{"w": jnp.ones((4, 4))}],
        "scale": jnp.ones(()),
        "step": jnp.zeros((), jnp.int32),
    }
    roles = roles_of(state=state)
    assert paths(roles, "parameter") == {
        "state['w']",
        "state['b']",
        "state['nested'][0]['w']",
    }
    # Scalars alone are trained, for want of anything else.
    assert paths(roles_of(state={"a": 1.0, "b": 2.0}), "parameter") == {
        "state['a']",
        "state['b']",
    }


class Custom(NamedTuple):
    """A hand-written state whose field names tell nothing."""

    here: Any
    there: Any


@register_dataclass
@dataclass(frozen=True)
class GanState:
    """Two models with two optimizers, twins in structure."""

    gen_params: Any
    disc_params: Any
    gen_opt: Any
    disc_opt: Any


def test_structure_alone_finds_an_unnamed_optimizer() -> None:
    params = small_params()
    state = Custom(here=params, there={"x": params, "y": params, "n": 3})
    roles = roles_of(state=state)
    assert all(path.startswith("state.here") for path in paths(roles, "parameter"))
    assert len(paths(roles, "parameter")) == 3
    assert len(owner_paths(roles)) == 6


def test_layers_are_not_taken_for_mirrors_of_each_other() -> None:
    layer = {"kernel": jnp.ones((8, 8))}
    model = {"embed": layer, "block": {"attention": layer, "mlp": layer}}
    assert len(paths(roles_of(state=model), "parameter")) == 3


def test_twin_models_keep_their_own_optimizers() -> None:
    params = small_params()
    moments = jax.eval_shape(optax.adam(1e-3).init, params)
    state = GanState(
        gen_params=params, disc_params=params, gen_opt=moments, disc_opt=moments
    )
    roles = roles_of(state=state)
    assert len(paths(roles, "parameter")) == 6
    for path, owner in owner_paths(roles).items():
        assert path[len("state.") :].split("_")[0] == owner[6:].split("_")[0]


def test_target_network_follows_its_parameters() -> None:
    params = small_params()
    state = {
        "params": params,
        "target_params": params,
        "opt_state": jax.eval_shape(optax.adam(1e-3).init, params),
    }
    roles = roles_of(state=state)
    assert all(p.startswith("state['params']") for p in paths(roles, "parameter"))
    assert len(owner_paths(roles)) == 9


def test_words_of_containers_are_not_looked_for_inside_the_parameters() -> None:
    params = {
        "opt": {"kernel": jnp.ones((8, 8))},
        "mu": {"kernel": jnp.ones((8, 8))},
        "stats": {"slow": jnp.ones((8, 8))},
    }
    opt_state = jax.eval_shape(optax.adam(1e-3).init, params)
    roles = roles_of(params=params, opt_state=opt_state)
    assert len(paths(roles, "parameter")) == 3
    assert len(owner_paths(roles)) == 6


def test_names_of_copies_count_only_beside_what_they_copy() -> None:
    tower = {"kernel": jnp.ones((8, 8))}
    roles = roles_of(p={"slow": tower, "fast": {"kernel": jnp.ones((4, 8))}})
    assert len(paths(roles, "parameter")) == 2


def test_extra_arrays_of_a_train_state_are_not_trained() -> None:
    params = small_params()
    state = {
        "params": params,
        "opt_state": jax.eval_shape(optax.adam(1e-3).init, params),
        "class_weights": jnp.ones(10),
        "mask": jax.tree.map(lambda x: x > 0, params),
    }
    roles = roles_of(state=state)
    assert roles["state['class_weights']"].role == "other"
    assert roles["state['class_weights']"].why == "not trained"
    # A mask of a parameter's path and shape lies as the parameter does.
    assert roles["state['mask']['head']['kernel']"].role == "optimizer"


def test_trained_beside_the_named_parameters() -> None:
    trained = {"params": {"w": jnp.ones((8, 8))}, "head": {"v": jnp.ones((8, 4))}}
    state = {**trained, "opt_state": jax.eval_shape(optax.adam(1e-3).init, trained)}
    roles = roles_of(state=state)
    assert paths(roles, "parameter") == {"state['params']['w']", "state['head']['v']"}


def test_selector_decides() -> None:
    state = {"a": {"w": jnp.ones((4, 4))}, "b": {"w": jnp.ones((4, 2))}, "n": 1}
    opt_state = jax.eval_shape(optax.adam(1e-3).init, {"a": state["a"]})
    roles = roles_of(r"\['w'\]", state=state, opt_state=opt_state)
    assert paths(roles, "parameter") == {"state['a']['w']", "state['b']['w']"}
    assert len(owner_paths(roles)) == 2
    roles = roles_of(lambda path: path.startswith("state['b']"), state=state)
    assert paths(roles, "parameter") == {"state['b']['w']"}
    roles = roles_of((r"\['a'\]", r"\['b'\]"), state=state)
    assert len(paths(roles, "parameter")) == 2


def test_selector_that_picks_nothing_or_too_much() -> None:
    state = {"w": jnp.ones((4, 4)), "n": jnp.ones((), jnp.int32)}
    with pytest.raises(ParamsError, match=r"'nothing'(.|\n)*state\['w'\]"):
        roles_of(("w", "nothing"), state=state)
    with pytest.raises(ParamsError, match=r"not floats(.|\n)*state\['n'\] +int32\[\]"):
        roles_of("state", state=state)


def test_no_parameters_lists_every_leaf() -> None:
    state = {"table": jnp.ones((4, 2), jnp.int32), "key": jax.random.key(0)}
    with pytest.raises(ParamsError) as caught:
        roles_of(state=state)
    text = str(caught.value)
    assert "state['table']  int32[4,2]" in text
    assert "state['key']" in text
    assert "ZeroConfig(params=" in text
    assert isinstance(caught.value, TypeError)


class CountingKey(str):
    """A path component that counts how often it is hashed or compared."""

    __slots__ = ()
    num_uses = 0

    def __hash__(self) -> int:
        CountingKey.num_uses += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        CountingKey.num_uses += 1
        return super().__eq__(other)


def _count_uses(num_layers: int) -> int:
    """Returns how much work on path components a state of that depth takes."""

    def leaf(arg: int, *keys: str) -> LeafFacts:
        return LeafFacts(
            path=str(arg) + "/".join(keys),
            keys=tuple(CountingKey(key) for key in keys),
            arg=arg,
            shape=(8, 8),
            dtype=np.dtype("f4"),
        )

    tree = [(f"layer_{i}", part) for i in range(num_layers) for part in ("w", "v")]
    leaves = [leaf(0, *keys) for keys in tree]
    leaves += [leaf(1, "0", name, *keys) for name in ("mu", "nu") for keys in tree]
    CountingKey.num_uses = 0
    roles = assign_roles(leaves, arg_names=("p", "s"))
    assert sum(role.role == "parameter" for role in roles) == len(tree)
    assert sum(role.owner is not None for role in roles) == 2 * len(tree)
    return CountingKey.num_uses


def test_work_is_linear_in_the_leaves() -> None:
    assert _count_uses(400) < 2.5 * _count_uses(200)
