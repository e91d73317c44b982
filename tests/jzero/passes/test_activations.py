"""Named activations wait for backward in host memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import jzero
from jzero import Offload, ZeroConfig
from jzero.audit.pods import pod_mesh
from jzero.compat.jaxpr import inner
from jzero.compat.memory import is_on_host
from jzero.errors import ConfigError
from jzero.passes.activations import offload_activations
from tests.jzero.passes.steps import check_types, trace_step
from tests.needs import needs_compiler

SAVE = jax.checkpoint_policies.save_only_these_names("block_in")
STACK = np.random.default_rng(0).normal(size=(4, 16, 16)).astype(np.float32) * 0.3
X = np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16)


def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
    h = checkpoint_name(h, "block_in")
    return jnp.tanh(h @ w) @ w.T, None


def scanned(ws: jax.Array, x: jax.Array) -> jax.Array:
    h, _ = jax.lax.scan(jax.checkpoint(layer, policy=SAVE), x, ws)
    return (h**2).mean()


def unrolled(ws: jax.Array, x: jax.Array) -> jax.Array:
    for i in range(4):
        x, _ = jax.checkpoint(layer, policy=SAVE)(x, ws[i])
    return (x**2).mean()


def micro_batches(ws: jax.Array, x: jax.Array) -> jax.Array:
    def add(total: jax.Array, part: jax.Array) -> tuple[jax.Array, None]:
        return total + jax.grad(scanned)(ws, part), None

    parts = x.reshape(2, -1, 16)
    return jax.lax.scan(add, jnp.zeros_like(ws), parts)[0]


def step_of(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(ws: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        if loss is micro_batches:
            return ws - 0.1 * loss(ws, x), x.sum()
        value, grads = jax.value_and_grad(loss)(ws, x)
        return ws - 0.1 * grads, value

    return step


def train(loss: Callable[..., Any], offload: Offload | None) -> np.ndarray:
    config = ZeroConfig(persistence_threshold=0, on_finding="ignore", offload=offload)
    step = jzero.shard_train_step(step_of(loss), stage=3, config=config)
    ws = step.shard(STACK)
    for _ in range(2):
        ws, _ = step(ws, X)
    return np.asarray(ws)


@pytest.mark.parametrize("loss", [scanned, unrolled, micro_batches])
def test_not_a_bit_differs(loss: Callable[..., Any]) -> None:
    plain = train(loss, None)
    for offload in (
        Offload(activations="block_in"),
        Offload(activations="block_in", params="host"),
    ):
        np.testing.assert_array_equal(train(loss, offload), plain)


@pytest.mark.parametrize("loss", [scanned, unrolled, micro_batches])
def test_what_is_saved_passes_through_host_memory(loss: Callable[..., Any]) -> None:
    def step(params: Any, slots: Any, x: Any) -> Any:
        new, value = step_of(loss)(params, x)
        return new, slots, value

    config = ZeroConfig(
        persistence_threshold=0, offload=Offload(activations="block_in")
    )
    traced, plan = trace_step(step, (STACK, STACK, X), 3, config=config)
    new = offload_activations(traced, plan)
    check_types(new.jaxpr)
    assert "<host>" in str(new.jaxpr)
    assert not any(is_on_host(v.aval) for v in inner(new.jaxpr).outvars)


def test_a_name_that_nothing_saves_is_an_error_with_the_names() -> None:
    config = ZeroConfig(offload=Offload(activations=("block_in", "head_in")))
    step = jzero.shard_train_step(step_of(scanned), config=config)
    with pytest.raises(ConfigError, match=r"(?s)'head_in'.*'block_in'.*Remedy"):
        step.plan(STACK, X)


@needs_compiler
def test_the_device_holds_one_activation_instead_of_all() -> None:
    rows = jax.ShapeDtypeStruct((2048, 256), jnp.float32)
    weights = jax.ShapeDtypeStruct((16, 256, 256), jnp.float32)
    temps = {}
    for name, offload in (("no", None), ("yes", Offload(activations="block_in"))):
        config = ZeroConfig(on_finding="ignore", offload=offload)
        step = jzero.shard_train_step(
            step_of(scanned), stage=3, mesh=pod_mesh("h100:1x1"), config=config
        )
        report = step.compile(weights, rows).report()
        temps[name] = report.memory.temp_bytes
    saved_bytes = 16 * 2048 * 256 * 4
    assert temps["no"] - temps["yes"] > 0.8 * saved_bytes
    assert report.host_traffic.to_host_bytes == saved_bytes
    assert report.host_traffic.to_device_bytes == saved_bytes
