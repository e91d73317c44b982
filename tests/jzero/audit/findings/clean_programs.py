"""Training steps in which nothing is wrong: no finder may find anything.

Small, but every matrix is above the threshold below which leaves stay whole, and
gathers are above the size below which findings look away.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

import jzero
from benchmarks.findings import NUM_DEVICES, Platform, make_mesh
from jzero.audit.step_report import StepReport
from tests.gpt_model import GPTStep, batch_shapes, build_gpt

__all__ = ["CLEAN", "NUM_TOKENS", "Program", "compile_gpt", "gpt_program", "report_of"]

NUM_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A step and the shapes that it is compiled for."""

    step: Callable[..., Any]
    state: Any
    batch: Any


def report_of(
    program: Program,
    stage: int,
    platform: Platform,
    axes: Mapping[str, int] | None = None,
    **settings: Any,
) -> StepReport:
    mesh = make_mesh(platform, axes or {"data": NUM_DEVICES})
    config = jzero.ZeroConfig(on_finding="ignore", **settings)
    step = jzero.shard_train_step(program.step, stage=stage, mesh=mesh, config=config)
    return step.compile(program.state, program.batch).report()


def small_gpt(is_scanned: bool = False, num_micro_batches: int = 1) -> GPTStep:
    return build_gpt(
        vocab=1024,
        width=256,
        num_layers=2,
        is_scanned=is_scanned,
        num_micro_batches=num_micro_batches,
    )


def gpt_program(
    num_devices: int, is_scanned: bool, num_micro_batches: int = 1
) -> Program:
    """Two sequences for each device and micro-batch."""
    gpt = small_gpt(is_scanned, num_micro_batches)
    rows = 2 * num_devices * num_micro_batches
    return Program(
        step=gpt.step, state=gpt.state_shapes(), batch=batch_shapes(rows, NUM_TOKENS)
    )


@functools.cache
def compile_gpt(
    stage: int, platform: Platform, is_scanned: bool, num_micro_batches: int = 1
) -> StepReport:
    program = gpt_program(NUM_DEVICES, is_scanned, num_micro_batches)
    return report_of(program, stage, platform)


def _trained(model: nn.Module, x: Any, y: Any) -> Program:
    """AdamW on the cross entropy of a Flax model."""
    tx = optax.adamw(1e-3)

    def create(x: jax.Array) -> Any:
        params = model.init(jax.random.key(0), x)
        return params, tx.init(params)

    def step(state: Any, batch: Any) -> Any:
        params, opt = state

        def loss_fn(params: Any) -> jax.Array:
            logits: Any = model.apply(params, batch["x"])
            losses = optax.softmax_cross_entropy_with_integer_labels(
                logits.astype(jnp.float32), batch["y"]
            )
            return losses.mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), loss

    return Program(step=step, state=jax.eval_shape(create, x), batch={"x": x, "y": y})


class _Conv(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for features in (64, 128, 256):
            x = nn.Conv(features, (3, 3), strides=2, dtype=jnp.bfloat16)(x)
            x = nn.relu(nn.GroupNorm(8, dtype=jnp.bfloat16)(x))
        return nn.Dense(128, dtype=jnp.bfloat16)(x.mean((1, 2)))


class _Tied(nn.Module):
    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        embed = nn.Embed(1024, 256, dtype=jnp.bfloat16)
        x = embed(ids)
        for _ in range(2):
            y = nn.gelu(nn.Dense(1024, dtype=jnp.bfloat16)(x))
            x = x + nn.Dense(256, dtype=jnp.bfloat16)(y)
        return embed.attend(x)


class _OddVocabulary(nn.Module):
    """Its embedding can be split along its width alone, and sees few tokens."""

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        x = nn.Embed(1001, 512, dtype=jnp.bfloat16)(ids)
        y = nn.gelu(nn.Dense(1024, dtype=jnp.bfloat16)(x))
        return nn.Dense(1001, dtype=jnp.bfloat16)(y)


def conv_net() -> Program:
    return _trained(
        _Conv(),
        jax.ShapeDtypeStruct((8 * NUM_DEVICES, 32, 32, 3), jnp.bfloat16),
        jax.ShapeDtypeStruct((8 * NUM_DEVICES,), jnp.int32),
    )


def tied_embeddings() -> Program:
    ids = jax.ShapeDtypeStruct((2 * NUM_DEVICES, NUM_TOKENS), jnp.int32)
    return _trained(_Tied(), ids, ids)


def odd_vocabulary() -> Program:
    ids = jax.ShapeDtypeStruct((NUM_DEVICES, NUM_TOKENS), jnp.int32)
    return _trained(_OddVocabulary(), ids, ids)


def scan_without_remat() -> Program:
    """The backward loop gathers layers that the forward loop has saved as shards."""
    tx = optax.adamw(1e-3)

    def step(state: Any, x: jax.Array) -> Any:
        def layer(x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
            h = jnp.tanh(x @ w["up"].astype(jnp.bfloat16))
            return x + h @ w["down"].astype(jnp.bfloat16), None

        def loss_fn(params: Any) -> jax.Array:
            y, _ = jax.lax.scan(layer, x, params)
            return (y.astype(jnp.float32) ** 2).mean()

        params, opt = state
        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), loss

    params = {
        "up": jax.ShapeDtypeStruct((4, 256, 512), jnp.float32),
        "down": jax.ShapeDtypeStruct((4, 512, 256), jnp.float32),
    }
    x = jax.ShapeDtypeStruct((64 * NUM_DEVICES, 256), jnp.bfloat16)
    state = params, jax.eval_shape(tx.init, params)
    return Program(step=step, state=state, batch=x)


CLEAN: dict[str, Callable[[], Program]] = {
    "conv_net": conv_net,
    "odd_vocabulary": odd_vocabulary,
    "scan_without_remat": scan_without_remat,
    "tied_embeddings": tied_embeddings,
}
