"""What the user wrote inside of a step is still there, and does what it did."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

import jzero
from tests.behaviour.training import assert_like_one_device, train, train_alone
from tests.end_to_end.oracle import SHARD_ALL, mesh_of

X = np.random.default_rng(0).normal(size=(16, 24)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(24, 16)).astype(np.float32)
Loss = Callable[[Any, jax.Array], jax.Array]


def make_step(loss: Loss) -> Any:
    def user_step(state: Any, x: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(state, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), {"loss": value}

    return user_step


def printed(capfd: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The words of each line that came out since the last look."""
    jax.effects_barrier()
    return [line.split() for line in capfd.readouterr().out.splitlines()]


@pytest.mark.parametrize("stage", range(4))
def test_prints_come_once_with_whole_values(
    stage: int, capfd: pytest.CaptureFixture[str]
) -> None:
    def loss(p: Any, x: jax.Array) -> jax.Array:
        def turn(c: jax.Array, i: jax.Array) -> Any:
            jax.debug.print("turn {i} {m:.3f}", i=i, m=c.mean())
            return jnp.tanh(c @ p["w"] @ p["w"].T), None

        y, _ = jax.lax.scan(turn, x, jnp.arange(2))
        jax.debug.print("weights {s:.3f}", s=jnp.abs(p["w"]).sum())
        show = lambda w, y: print("shapes", w.shape, y.shape)  # noqa: E731
        jax.debug.callback(show, p["w"], y)
        return (y**2).mean()

    printed(capfd)
    train(make_step(loss), {"w": W}, [(X,), (X,)], stage=stage)
    ours = printed(capfd)
    train_alone(make_step(loss), {"w": W}, [(X,), (X,)])
    assert sorted(ours) == sorted(printed(capfd))
    assert len(ours) == 2 * 4


def test_ordered_io_callback_comes_once_per_step_in_order() -> None:
    seen: list[float] = []

    def loss(p: Any, x: jax.Array) -> jax.Array:
        y = x @ p["w"]
        see = lambda m: seen.append(float(m))  # noqa: E731
        io_callback(see, None, jax.lax.stop_gradient(y.mean()), ordered=True)
        return (y**2).mean()

    train(make_step(loss), {"w": W}, [(X,)] * 4)
    jax.effects_barrier()
    ours, seen[:] = list(seen), []
    train_alone(make_step(loss), {"w": W}, [(X,)] * 4)
    jax.effects_barrier()
    np.testing.assert_allclose(ours, seen, rtol=1e-4)
    assert len(ours) == 4


def test_what_jax_refuses_on_several_devices_loses_nothing() -> None:
    def loss(p: Any, x: jax.Array) -> jax.Array:
        jax.debug.print("{m}", m=x.mean(), ordered=True)
        return ((x @ p["w"]) ** 2).mean()

    step = jzero.shard_train_step(make_step(loss), config=SHARD_ALL)
    state = step.shard({"w": W})
    with pytest.raises(ValueError, match="ordered effects are not supported"):
        step(state, X)
    np.testing.assert_array_equal(state["w"], W)


def _matmul_kernel(x_ref: Any, w_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] @ w_ref[...]


@jax.custom_vjp
def pallas_matmul(x: jax.Array, w: jax.Array) -> jax.Array:
    out = jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), x.dtype)
    return pl.pallas_call(_matmul_kernel, out_shape=out, interpret=True)(x, w)


pallas_matmul.defvjp(
    lambda x, w: (pallas_matmul(x, w), (x, w)),
    lambda kept, g: (pallas_matmul(g, kept[1].T), pallas_matmul(kept[0].T, g)),
)


def _host_scale(p: Any, x: jax.Array) -> jax.Array:
    largest = lambda w: np.asarray(np.abs(w).max())  # noqa: E731
    result = jax.ShapeDtypeStruct((), jnp.float32)
    scale = jax.pure_callback(largest, result, jax.lax.stop_gradient(p["w"]))
    return ((x @ p["w"] / scale) ** 2).mean()


def _summed_region(p: Any, x: jax.Array) -> jax.Array:
    def body(w: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.psum(((x @ w) ** 2).sum(), "data")

    specs = (P(), P("data"))
    region = jax.shard_map(body, mesh=mesh_of(8), in_specs=specs, out_specs=P())
    return region(p["w"], x) / x.size


def _region_with_its_own_gather(p: Any, x: jax.Array) -> jax.Array:
    def body(w: jax.Array, x: jax.Array) -> jax.Array:
        w = jax.lax.all_gather(w, "data", tiled=True)
        return jax.lax.psum(((x @ w) ** 2).sum(), "data")

    specs = (P("data"), P("data"))
    region = jax.shard_map(body, mesh=mesh_of(8), in_specs=specs, out_specs=P())
    return region(p["w"], x) / x.size


OWN: dict[str, Loss] = {
    "pallas": lambda p, x: (pallas_matmul(x, p["w"]) ** 2).mean(),
    "pure_callback": _host_scale,
    "shard_map": _summed_region,
    "shard_map_gather": _region_with_its_own_gather,
}


@pytest.mark.parametrize("stage", (1, 2, 3))
@pytest.mark.parametrize("name", OWN)
def test_kernels_callbacks_and_regions(name: str, stage: int) -> None:
    assert_like_one_device(make_step(OWN[name]), {"w": W}, [(X,), (X,)], stage=stage)


def _with_names(p: Any, x: jax.Array) -> jax.Array:
    def block(w: jax.Array, x: jax.Array) -> jax.Array:
        with jax.named_scope("my_scope"):
            y = checkpoint_name(jnp.sin(x @ w), "my_name")
        return jnp.tanh(y) @ w.T

    policy = jax.checkpoint_policies.save_only_these_names("my_name")
    return (jax.checkpoint(block, policy=policy)(p["w"], x) ** 2).mean()


@pytest.mark.parametrize("stage", range(4))
def test_names_scopes_and_lines_reach_the_compiled_program(stage: int) -> None:
    step = jzero.shard_train_step(make_step(_with_names), stage=stage, config=SHARD_ALL)
    lowered = step.lower({"w": W}, X)
    program = lowered.compile().as_text()
    assert "user_step" in program.splitlines()[0]
    assert "my_scope" in program
    source = lowered.as_text(debug_info=True)
    lines, first = inspect.getsourcelines(_with_names)
    (offset,) = [
        i for i, text in enumerate(lines) if "my_name" in text and "sin" in text
    ]
    assert f'test_kept.py":{first + offset}' in source


@pytest.mark.parametrize("stage", range(4))
def test_checkpoint_policies_still_decide_what_is_computed_twice(stage: int) -> None:
    """The named sine is saved and computed once, the tanh after it twice."""
    step = jzero.shard_train_step(make_step(_with_names), stage=stage, config=SHARD_ALL)
    alone = jax.jit(make_step(_with_names)).lower({"w": W}, X).as_text()
    text = step.lower({"w": W}, X).as_text()
    for operation in ("sine", "cosine", "tanh"):
        wanted = alone.count(f"stablehlo.{operation} ")
        assert text.count(f"stablehlo.{operation} ") == wanted, operation
    assert alone.count("stablehlo.sine ") == 1
    assert alone.count("stablehlo.tanh ") > 1
