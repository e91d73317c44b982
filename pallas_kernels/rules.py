"""The arithmetic of optimizers, per element: plain values in, plain values out.

Lives here: one frozen record per optimizer, with its hyperparameters and `step`. The
reference, the interpreter and the kernels all call the same `step`, so it is what a
kernel means. May import: jax alone. Read next: `update.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import jax.numpy as jnp

__all__ = ["AdamW", "Lion", "Momentum", "Rule", "Scalars", "Sign"]

Sign = Literal["signed", "unsigned"]


class Scalars(NamedTuple):
    """What changes from step to step and is the same for every element; float32.

    Attributes:
        grad_scale: What gradients are multiplied by first: the clip factor of a
            global norm times the reciprocal of a loss scale.
        learning_rate: Of this step.
        bias1: `1 - b1 ** t`, for optimizers that correct their first moment.
        bias2: `1 - b2 ** t`.
        skip: 1 leaves every bit of parameters and moments as it is, 0 does not. None
            where the caller sees to it: a kernel then writes nothing.
    """

    grad_scale: Any
    learning_rate: Any
    bias1: Any
    bias2: Any
    skip: Any


class Rule(Protocol):
    """What `update.py` needs of an optimizer."""

    @property
    def signs(self) -> tuple[Sign, ...]:
        """One entry per moment: whether it can be negative."""
        ...

    def step(
        self, param: Any, grad: Any, moments: tuple[Any, ...], scalars: Scalars
    ) -> tuple[Any, tuple[Any, ...]]:
        """Returns what is added to the parameter, and the new moments."""
        ...


def _average(decay: float, old: Any, new: Any) -> Any:
    return (1 - decay) * new + decay * old


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay, or with L2 regularization.

    Attributes:
        b1: Decay of the first moment.
        b2: Decay of the second moment.
        eps: Added to the root of the second moment.
        eps_root: Added below the root.
        weight_decay: Times the parameter, added to the update (or to the gradient).
        is_l2: Add the decay to the gradient, before the moments see it.

    Source: Kingma and Ba, arXiv 1412.6980; Loshchilov and Hutter, arXiv 1711.05101.

    Example:
        >>> one = Scalars(1.0, 0.1, 0.1, 0.001, 0.0)
        >>> delta, _ = AdamW(weight_decay=0.0).step(1.0, 2.0, (0.0, 0.0), one)
        >>> round(float(delta), 6)
        -0.1
    """

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    eps_root: float = 0.0
    weight_decay: float = 1e-4
    is_l2: bool = False

    @property
    def signs(self) -> tuple[Sign, ...]:
        """A mean of gradients, and a mean of their squares."""
        return ("signed", "unsigned")

    def step(
        self, param: Any, grad: Any, moments: tuple[Any, ...], scalars: Scalars
    ) -> tuple[Any, tuple[Any, ...]]:
        """Returns what is added to the parameter, and the new moments."""
        if self.is_l2 and self.weight_decay:
            grad = grad + self.weight_decay * param
        mu = _average(self.b1, moments[0], grad)
        nu = _average(self.b2, moments[1], grad * grad)
        root = jnp.sqrt(nu / scalars.bias2 + self.eps_root)
        update = (mu / scalars.bias1) / (root + self.eps)
        if not self.is_l2 and self.weight_decay:
            update = update + self.weight_decay * param
        return -scalars.learning_rate * update, (mu, nu)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lion:
    """The sign of a mix of gradient and momentum.

    Attributes:
        b1: Weight of the momentum in the step.
        b2: Decay of the momentum.
        weight_decay: Times the parameter, added to the update.

    Source: Chen et al., arXiv 2302.06675.

    Example:
        >>> Lion(weight_decay=0.0).step(1.0, 2.0, (0.0,), Scalars(1.0, 0.5, 1, 1, 0))[0]
        Array(-0.5, dtype=float32, weak_type=True)
    """

    b1: float = 0.9
    b2: float = 0.99
    weight_decay: float = 1e-3

    @property
    def signs(self) -> tuple[Sign, ...]:
        """A mean of gradients."""
        return ("signed",)

    def step(
        self, param: Any, grad: Any, moments: tuple[Any, ...], scalars: Scalars
    ) -> tuple[Any, tuple[Any, ...]]:
        """Returns what is added to the parameter, and the new momentum."""
        mix = _average(self.b1, moments[0], grad)
        # Not `jnp.sign`: not every kernel compiler has it.
        update = jnp.where(mix > 0, 1.0, jnp.where(mix < 0, -1.0, mix))
        if self.weight_decay:
            update = update + self.weight_decay * param
        mu = _average(self.b2, moments[0], grad)
        return -scalars.learning_rate * update, (mu,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Momentum:
    """Stochastic gradient descent with a trace of past gradients.

    Attributes:
        decay: Of the trace.
        nesterov: Look one step ahead.
        weight_decay: L2: times the parameter, added to the gradient.

    Source: Sutskever et al., ICML 2013.

    Example:
        >>> Momentum().step(1.0, 2.0, (1.0,), Scalars(1.0, 0.5, 1, 1, 0))
        (-1.45, (2.9,))
    """

    decay: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0

    @property
    def signs(self) -> tuple[Sign, ...]:
        """A sum of gradients."""
        return ("signed",)

    def step(
        self, param: Any, grad: Any, moments: tuple[Any, ...], scalars: Scalars
    ) -> tuple[Any, tuple[Any, ...]]:
        """Returns what is added to the parameter, and the new trace."""
        if self.weight_decay:
            grad = grad + self.weight_decay * param
        trace = grad + self.decay * moments[0]
        update = grad + self.decay * trace if self.nesterov else trace
        return -scalars.learning_rate * update, (trace,)
