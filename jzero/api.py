"""`shard_train_step`: the way in. Wiring only.

May import: everything below. Read next: `step.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.sharding import Mesh

from jzero.config import ZeroConfig
from jzero.errors import ConfigError, MeshError
from jzero.plan.stages import check_stage
from jzero.runtime.calls import StepFunction
from jzero.runtime.mesh import auto_mesh, default_mesh
from jzero.runtime.mutable import unwrap_nnx_jit
from jzero.runtime.settings import Settings
from jzero.step import TrainStep


def shard_train_step(
    step_fn: Callable[..., Any],
    *,
    stage: int = 3,
    mesh: Mesh | None = None,
    config: ZeroConfig | None = None,
    state_argnums: int | Sequence[int] | None = None,
    batch_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> TrainStep:
    """Turns a training step for one device into a ZeRO step.

    The result is called exactly like `step_fn` and computes the same numbers; the
    state it takes and returns is sharded by the stage, and donated.

    Args:
      step_fn: any function that takes state and data and returns new state, as
        `(state, batch) -> (state, metrics)`, `(params, opt_state, x, y) ->
        (params, opt_state, loss)`, or `(model, optimizer, batch) -> loss` on nnx
        objects; may already be under `jax.jit`.
      stage: 0 replicates everything; 1 shards the state and gathers parameters
        once per step; 2 also reduces gradients as they are produced; 3 gathers
        parameters at each use.
      mesh: devices; default one axis over all of them. Axes may be Auto or
        Explicit; further axes (tensor, replica) are left to the user's specs.
      config: everything else.
      state_argnums: which positional arguments are state, when outputs do not
        tell.
      batch_argnums: which positional arguments are split over the batch axes,
        when shapes do not tell.
      static_argnums: positions of static arguments, as in `jax.jit`.
      static_argnames: names of static arguments, as in `jax.jit`.

    Returns:
      The sharded step.

    Raises:
      StageError: there is no such stage.
      ConfigError: a setting is unknown or contradicts another.
      MeshError: the mesh lacks an axis that the config names.

    Source: ZeRO, arXiv 1910.02054, section 5.

    Example:
      >>> import jax.numpy as jnp
      >>> def train_step(w, x):
      ...     return w - 0.1 * x.mean(), {"mean": x.mean()}
      >>> step = shard_train_step(train_step, stage=2)
      >>> w, metrics = step(jnp.ones((8,)), jnp.ones((16, 4)))
      >>> float(w[0])  # doctest: +ELLIPSIS
      0.8999...
    """
    config = ZeroConfig() if config is None else config
    if not isinstance(config, ZeroConfig):
        raise ConfigError(
            f"config must be a ZeroConfig, got {type(config).__name__}.\n"
            "Remedy: pass jzero.ZeroConfig(...)."
        )
    check_stage(config, stage)
    if mesh is None:
        if not isinstance(config.axis, str):
            raise MeshError(
                f"config names the axes {config.axes}, but there is no mesh.\n"
                "Remedy: pass mesh=jax.make_mesh(sizes, names)."
            )
        mesh = default_mesh(config.axis)
    mesh = auto_mesh(mesh)
    missing = sorted({*config.axes, *config.batch_axes} - set(mesh.axis_names))
    if missing:
        raise MeshError(
            f"the mesh has axes {dict(mesh.shape)}, but the config names "
            f"{', '.join(map(repr, missing))}.\n"
            f"Remedy: pass ZeroConfig(axis={mesh.axis_names[0]!r}), or a mesh with "
            "the named axes."
        )
    function = StepFunction(
        unwrap_nnx_jit(step_fn),
        static_argnums=static_argnums,
        static_argnames=static_argnames,
    )
    settings = Settings(
        stage=stage,
        mesh=mesh,
        config=config,
        state_argnums=_argnums(state_argnums),
        batch_argnums=_argnums(batch_argnums),
    )
    return TrainStep(function, settings)


def _argnums(value: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    nums = (value,) if isinstance(value, int) else tuple(value)
    if any(isinstance(n, bool) or not isinstance(n, int) for n in nums):
        raise ConfigError(
            f"argument positions must be ints, got {value!r}.\n"
            "Remedy: pass state_argnums=(0, 1), say."
        )
    return nums
