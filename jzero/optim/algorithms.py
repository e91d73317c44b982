"""The optimizers by name: `adamw`, `adam`, `lion`, `sgd`.

Lives here: the constructors and what they refuse. May import: `errors`,
`transform.py`, `leaves.py`, pallas_kernels. Read next: `transform.py`.

All of them take these keywords:

| keyword | meaning |
|---|---|
| `state` | "f32", or "int8": moments as 8-bit codes with a float32 scale per block |
| `params` | "f32", "bf16" or "f16": refuse others; None takes any |
| `rounding` | "nearest", or "stochastic": round bfloat16 parameters by chance |
| `seed` | of stochastic rounding |
| `clip_norm` | the largest global norm of gradients |
| `mask` | which leaves decay: a tree of bools, or a function that makes one |
| `min_coded_elems` | leaves with fewer elements keep float32 moments |
| `keep_float32` | patterns of paths that keep float32 moments: embeddings |
| `backend` | of `pallas_kernels.fused_update` |
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from numbers import Real
from typing import Any, Literal, TypedDict, Unpack

import jax.numpy as jnp

from jzero.errors import ConfigError, format_problem
from jzero.optim.leaves import EMBEDDINGS, Mask, Storage
from jzero.optim.transform import (
    AnyRule,
    FusedTransformation,
    FusedUpdate,
    LearningRate,
    build,
)
from pallas_kernels import AdamW, Lion, Momentum, check_backend

__all__ = ["FusedOptions", "adam", "adamw", "lion", "sgd"]

_DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}


class FusedOptions(TypedDict, total=False):
    """The keywords that every optimizer takes; see the top of this module."""

    state: Literal["f32", "int8"]
    params: Literal["f32", "bf16", "f16"] | None
    rounding: Literal["nearest", "stochastic"]
    seed: int
    clip_norm: float | None
    mask: Mask
    min_coded_elems: int
    keep_float32: str | Iterable[str]
    backend: str


def adamw(
    learning_rate: LearningRate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    weight_decay: float = 1e-4,
    **options: Unpack[FusedOptions],
) -> FusedTransformation:
    """Adam with decoupled weight decay; the numbers of `optax.adamw`.

    Args:
        learning_rate: A number, a scalar array, or a schedule of the count.
        b1: Decay of the first moment.
        b2: Decay of the second moment.
        eps: Added to the root of the second moment.
        eps_root: Added below the root.
        weight_decay: Times the parameter, added to the update.
        **options: See the top of this module.

    Returns:
        An optax gradient transformation with an `apply` besides.

    Raises:
        ConfigError: An option is unknown, or has no effect.

    Example:
        >>> tx = adamw(3e-4, weight_decay=0.1, state="int8")
        >>> state = tx.init({"w": jnp.ones((64, 256))})
        >>> state.mu["w"].dtype, state.mu_scales["w"].shape
        (dtype('int8'), (64, 1))
    """
    rule = AdamW(b1=b1, b2=b2, eps=eps, eps_root=eps_root, weight_decay=weight_decay)
    return _fused(rule, learning_rate, options)


def adam(
    learning_rate: LearningRate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    weight_decay: float = 0.0,
    **options: Unpack[FusedOptions],
) -> FusedTransformation:
    """Adam, with L2 regularization if there is weight decay.

    The decay is added to the gradient before the moments see it, as by
    `optax.chain(optax.add_decayed_weights(d), optax.adam(lr))`.

    Args:
        learning_rate: A number, a scalar array, or a schedule of the count.
        b1: Decay of the first moment.
        b2: Decay of the second moment.
        eps: Added to the root of the second moment.
        eps_root: Added below the root.
        weight_decay: Times the parameter, added to the gradient.
        **options: See the top of this module.

    Returns:
        An optax gradient transformation with an `apply` besides.

    Raises:
        ConfigError: An option is unknown, or has no effect.

    Example:
        >>> tx, params = adam(0.1), {"w": jnp.ones(1)}
        >>> deltas, _ = tx.update({"w": jnp.ones(1)}, tx.init(params), params)
        >>> round(float(deltas["w"][0]), 5)
        -0.1
    """
    rule = AdamW(
        b1=b1, b2=b2, eps=eps, eps_root=eps_root, weight_decay=weight_decay, is_l2=True
    )
    return _fused(rule, learning_rate, options)


def lion(
    learning_rate: LearningRate,
    b1: float = 0.9,
    b2: float = 0.99,
    weight_decay: float = 1e-3,
    **options: Unpack[FusedOptions],
) -> FusedTransformation:
    """The sign of a mix of gradient and momentum; the numbers of `optax.lion`.

    Args:
        learning_rate: A number, a scalar array, or a schedule of the count.
        b1: Weight of the momentum in the step.
        b2: Decay of the momentum.
        weight_decay: Times the parameter, added to the update.
        **options: See the top of this module.

    Returns:
        An optax gradient transformation with an `apply` besides.

    Raises:
        ConfigError: An option is unknown, or has no effect.

    Example:
        >>> tx, params = lion(0.5, weight_decay=0.0), {"w": jnp.ones(1)}
        >>> tx.update({"w": jnp.ones(1)}, tx.init(params), params)[0]["w"].tolist()
        [-0.5]
    """
    rule = Lion(b1=b1, b2=b2, weight_decay=weight_decay)
    return _fused(rule, learning_rate, options)


def sgd(
    learning_rate: LearningRate,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    **options: Unpack[FusedOptions],
) -> FusedTransformation:
    """Gradient descent with momentum; the numbers of `optax.sgd`.

    Args:
        learning_rate: A number, a scalar array, or a schedule of the count.
        momentum: Decay of the trace of gradients.
        nesterov: Look one step ahead.
        weight_decay: L2: times the parameter, added to the gradient.
        **options: See the top of this module.

    Returns:
        An optax gradient transformation with an `apply` besides.

    Raises:
        ConfigError: An option is unknown, or has no effect.

    Example:
        >>> tx, params = sgd(0.5), {"w": jnp.ones(1)}
        >>> tx.update({"w": jnp.ones(1)}, tx.init(params), params)[0]["w"].tolist()
        [-0.5]
    """
    rule = Momentum(decay=momentum, nesterov=nesterov, weight_decay=weight_decay)
    return _fused(rule, learning_rate, options)


def _fused(
    rule: AnyRule, learning_rate: LearningRate, options: FusedOptions
) -> FusedTransformation:
    given: dict[str, Any] = {
        "state": "f32",
        "params": None,
        "rounding": "nearest",
        "seed": 0,
        "clip_norm": None,
        "mask": None,
        "min_coded_elems": 4096,
        "keep_float32": EMBEDDINGS,
        "backend": "auto",
    }
    if unknown := sorted(set(options) - set(given)):
        raise ConfigError(
            f"Unknown options: {', '.join(unknown)}.\n"
            f"Remedy: pass one of {', '.join(given)}."
        )
    _check_effects(rule, options)
    given |= options
    _one_of("state", given["state"], ("f32", "int8"))
    _one_of("params", given["params"], (None, *_DTYPES))
    _one_of("rounding", given["rounding"], ("nearest", "stochastic"))
    try:
        check_backend(given["backend"])
    except ValueError as error:
        raise ConfigError(str(error)) from None
    is_stochastic = given["rounding"] == "stochastic"
    if is_stochastic and given["params"] not in (None, "bf16"):
        raise ConfigError(
            f'rounding="stochastic" has no effect on {given["params"]} parameters.\n'
            'Remedy: pass params="bf16", or leave the rounding out.'
        )
    storage = Storage(
        is_coded=given["state"] == "int8",
        min_coded_elems=given["min_coded_elems"],
        keep_float32=_patterns(given["keep_float32"]),
        param_dtype=given["params"] and _DTYPES[given["params"]],
        is_stochastic=is_stochastic,
    )
    return build(
        FusedUpdate(
            rule=rule,
            learning_rate=learning_rate,
            storage=storage,
            mask=given["mask"],
            clip_norm=given["clip_norm"],
            seed=given["seed"],
            backend=given["backend"],
        )
    )


def _check_effects(rule: AnyRule, options: FusedOptions) -> None:
    traced = [
        name
        for name in type(rule).__dataclass_fields__
        if not isinstance(getattr(rule, name), Real)
    ]
    if traced:
        raise ConfigError(
            format_problem(
                "Hyperparameters besides the learning rate are part of the program:",
                traced,
                "pass Python numbers; to optax.inject_hyperparams give a function of "
                "the learning rate alone.",
            )
        )
    needs = [
        ("mask", bool(rule.weight_decay), "without weight decay"),
        (
            "seed",
            options.get("rounding") == "stochastic",
            'without rounding="stochastic"',
        ),
        ("min_coded_elems", options.get("state") == "int8", 'without state="int8"'),
        ("keep_float32", options.get("state") == "int8", 'without state="int8"'),
    ]
    for name, is_used, why in needs:
        if options.get(name) is not None and not is_used:
            raise ConfigError(f"{name}=... has no effect {why}.\nRemedy: leave it out.")


def _one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ConfigError(
            f"{name}={value!r} is not valid.\n"
            f"Remedy: pass one of {', '.join(map(repr, choices))}."
        )


def _patterns(value: str | Iterable[str]) -> tuple[str, ...]:
    patterns = (value,) if isinstance(value, str) else tuple(value)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"keep_float32: {pattern!r} is not a regular expression: {error}.\n"
                "Remedy: escape brackets and dots."
            ) from error
    return patterns
