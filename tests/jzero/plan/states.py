"""States as users have them, for the planning tests: real flax and optax trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import PartitionSpec

from jzero.config import ZeroConfig
from jzero.plan.leaves import LeafFacts, describe_tree
from jzero.plan.plan import Plan, plan_state
from jzero.plan.roles import RoleInfo, assign_roles
from jzero.plan.stages import check_stage


def describe(**args: Any) -> tuple[LeafFacts, ...]:
    """Describes the leaves of named state arguments."""
    return tuple(
        leaf
        for arg, (name, tree) in enumerate(args.items())
        for leaf in describe_tree(tree, arg=arg, name=name)
    )


def roles_of(selector: Any = None, **args: Any) -> dict[str, RoleInfo]:
    """Returns the role of each leaf of named state arguments, by path."""
    leaves = describe(**args)
    roles = assign_roles(leaves, arg_names=tuple(args), selector=selector)
    return {leaf.path: role for leaf, role in zip(leaves, roles, strict=True)}


def paths(roles: Mapping[str, RoleInfo], role: str) -> set[str]:
    """Returns the paths that have a role."""
    return {path for path, info in roles.items() if info.role == role}


def owner_paths(roles: Mapping[str, RoleInfo]) -> dict[str, str]:
    """Returns the path of the owner, for each leaf that has one."""
    order: Sequence[str] = list(roles)
    return {
        path: order[info.owner]
        for path, info in roles.items()
        if info.owner is not None
    }


def small_params() -> dict[str, Any]:
    """A dict of three arrays, two of them of one shape."""
    return {
        "dense": {"kernel": jnp.ones((8, 16)), "bias": jnp.ones((16,))},
        "head": {"kernel": jnp.ones((8, 16))},
    }


class ConvNet(nn.Module):
    """A linen model with batch statistics."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(8, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=False)(x)
        return nn.Dense(4)(x.mean((1, 2)))


class NormTrainState(TrainState):
    """A linen train state with batch statistics and a dropout key."""

    batch_stats: Any
    key: jax.Array


def linen_state(tx: optax.GradientTransformation) -> NormTrainState:
    """Returns the state of the conv net, as shapes."""

    def create() -> NormTrainState:
        model = ConvNet()
        variables = model.init(jax.random.key(0), jnp.ones((2, 8, 8, 1)))
        return NormTrainState.create(
            apply_fn=model.apply,
            params=variables["params"],
            batch_stats=variables["batch_stats"],
            key=jax.random.key(1),
            tx=tx,
        )

    return jax.eval_shape(create)


class NormMlp(nnx.Module):
    """An nnx model with batch statistics and dropout."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.dense = nnx.Linear(8, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(16, 4, rngs=rngs)


def plan_of(
    stage: int,
    *,
    axis_sizes: Mapping[str, int] | None = None,
    config: ZeroConfig | None = None,
    base_specs: Mapping[str, PartitionSpec] | None = None,
    **args: Any,
) -> Plan:
    """Plans named state arguments; by default on 8 devices, with no threshold."""
    config = config or ZeroConfig(persistence_threshold=0)
    sizes = dict(axis_sizes or {"data": 8})
    leaves = tuple(
        replace(leaf, base_spec=(base_specs or {}).get(leaf.path, leaf.base_spec))
        for leaf in describe(**args)
    )
    roles = assign_roles(leaves, arg_names=tuple(args), selector=config.params)
    return Plan(
        stage=stage,
        placement=check_stage(config, stage),
        axis_sizes=tuple(sizes.items()),
        zero_axes=config.axes,
        batch_axes=config.batch_axes,
        config=config,
        state=plan_state(leaves, roles, stage=stage, config=config, axis_sizes=sizes),
    )
