"""Which updates run as kernels, and what is said of those that cannot."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jzero import Offload, ZeroConfig
from jzero.audit.pods import pod_mesh
from jzero.errors import ConfigError
from jzero.ir.stream_kernel import HostCompute
from jzero.ir.trace import TracedStep
from jzero.plan.plan import Plan
from tests.jzero.passes.steps import trace_step
from tests.needs import needs_compiler

W = np.ones((16, 16), np.float32)
KERNELS = Offload(optimizer="host", params="host", compute="host", compiler="llvm")


def traced(
    tx: optax.GradientTransformation, change: Callable[[Any], Any] = lambda g: g
) -> tuple[TracedStep, Plan]:
    def step(params: Any, opt_state: Any, x: Any) -> tuple[Any, ...]:
        grads = jax.grad(lambda p: sum(jnp.sin(x @ w).sum() for w in p.values()))
        updates, opt_state = tx.update(change(grads(params)), opt_state, params)
        return optax.apply_updates(params, updates), opt_state, x.sum()

    params = {"a": W, "b": W}
    config = ZeroConfig(persistence_threshold=0, offload=KERNELS)
    return trace_step(step, (params, tx.init(params), W), 3, config=config)


def test_an_update_that_is_covered() -> None:
    step, plan = traced(optax.adamw(1e-3))
    host = HostCompute.of(step, plan, KERNELS)
    assert host is not None
    assert host.has_kernels


def test_xla_and_the_device_are_not_checked() -> None:
    step, plan = traced(optax.sgd(1e-3), lambda g: jax.tree.map(jnp.tanh, g))
    by_xla = HostCompute.of(step, plan, Offload(params="host", compute="host"))
    assert by_xla is not None
    assert not by_xla.has_kernels
    assert HostCompute.of(step, plan, Offload(params="host")) is None


def test_every_leaf_is_named_with_what_is_missing() -> None:
    step, plan = traced(optax.sgd(1e-3), lambda g: jax.tree.map(jnp.tanh, g))
    with pytest.raises(ConfigError, match="Remedy: leave compiler out") as caught:
        HostCompute.of(step, plan, KERNELS)
    for leaf in plan.state:
        row = [x for x in str(caught.value).splitlines() if leaf.path in x]
        assert len(row) == 1
        assert "its update has tanh" in row[0]


def test_what_is_updated_as_a_whole_is_refused() -> None:
    step, plan = traced(optax.MultiSteps(optax.sgd(1e-3), 2))
    with pytest.raises(ConfigError, match="is made by cond, as a whole"):
        HostCompute.of(step, plan, KERNELS)


def test_a_missing_llvmlite(monkeypatch: pytest.MonkeyPatch) -> None:
    step, plan = traced(optax.sgd(1e-3))
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    with pytest.raises(ConfigError, match=r'pip install "jzero\[host-kernels\]"'):
        HostCompute.of(step, plan, KERNELS)


@needs_compiler
def test_other_backends_are_refused() -> None:
    step, plan = traced(optax.sgd(1e-3))
    step = TracedStep(**{**_fields(step), "mesh": pod_mesh("h100:1x8")})
    with pytest.raises(ConfigError, match="runs on the CPU backend"):
        HostCompute.of(step, plan, KERNELS)


def _fields(step: TracedStep) -> dict[str, Any]:
    return {name: getattr(step, name) for name in step.__dataclass_fields__}
