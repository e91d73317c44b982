"""Arrays come back in their places, of every dtype, with every bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jzero
from jzero.plan.plan import LeafPlan
from tests.jzero.checkpoint.small import assert_same, bits, make_step, saved, whole

DTYPES = (
    jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32, jnp.uint32, jnp.int8, jnp.bool_,
    jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.int4, jnp.complex64,
)  # fmt: skip
AWKWARD = np.array([1.0009765625, -0.0, np.inf, 448.0, 1e-8, 16777217, 3, 0])


def every_dtype() -> dict[str, Any]:
    state: dict[str, Any] = {"w": jnp.ones((16, 4))}
    for dtype in DTYPES:
        with np.errstate(invalid="ignore", over="ignore"):
            state[jnp.dtype(dtype).name] = jnp.asarray(AWKWARD, jnp.float32).astype(
                dtype
            )
    state["int32"] = jnp.full((8,), 16_777_217, jnp.int32)
    state["uint32"] = jnp.full((8,), 2**32 - 1, jnp.uint32)
    state["nan"] = jnp.asarray(np.array([0x7FC00001, 0xFF800001] * 4, np.uint32)).view(
        jnp.float32
    )
    state["keys"] = jax.random.split(jax.random.key(3, impl="rbg"), 16)
    state["raw"] = jax.random.PRNGKey(4)
    state["no_keys"] = state["keys"][:0]
    state["odd"] = {"": jnp.ones(3), "a/b": {"": jnp.ones(2)}, "..": jnp.ones(1)}
    state["none"] = None
    state["empty"] = {"a": jnp.zeros((4, 0), jnp.int8), "b": {}, "c": ()}
    state["scalar"] = jnp.bfloat16(0.1)
    return state


def test_every_dtype_and_bit(tmp_path: Path) -> None:
    step = make_step()
    state = step.init(every_dtype)
    saved(tmp_path, step, state)
    other = make_step(4)
    with jzero.Checkpointer(tmp_path, other) as ckpt:
        got, _ = ckpt.restore_or_init(every_dtype)
    assert_same(whole(got), whole(state))
    assert got["keys"].sharding.device_set == set(jax.devices()[:4])


def test_a_cast_rounds_as_jax_does(tmp_path: Path) -> None:
    step = make_step()
    values = np.random.default_rng(0).normal(size=4096).astype(np.float32)
    saved(tmp_path, step, step.shard({"w": values, "n": jnp.arange(8)}))
    target = {"w": jnp.zeros(4096, jnp.bfloat16), "n": jnp.zeros(8, jnp.float32)}
    with jzero.Checkpointer(tmp_path, step) as ckpt:
        with pytest.raises(jzero.MismatchError, match="float32 -> bfloat16"):
            ckpt.restore(like=target)
        got = ckpt.restore(like=target, cast=True)
    assert bits(got["w"]) == bits(jnp.asarray(values).astype(jnp.bfloat16))
    np.testing.assert_array_equal(got["n"], np.arange(8, dtype=np.float32))


def test_tied_leaves_come_back_as_two_that_can_be_donated(tmp_path: Path) -> None:
    step = make_step()
    w = jnp.arange(16.0)
    saved(tmp_path, step, {"a": w, "b": w})
    with jzero.Checkpointer(tmp_path, step) as ckpt:
        got = ckpt.restore(like={"a": w, "b": w})
    for leaf in got.values():
        np.testing.assert_array_equal(leaf, w)
    pointers = [
        {s.data.unsafe_buffer_pointer() for s in x.addressable_shards}
        for x in got.values()
    ]
    assert pointers[0].isdisjoint(pointers[1])


def test_tied_leaves_each_have_the_dtype_and_place_they_are_wanted_in(
    tmp_path: Path,
) -> None:
    step = make_step()
    w = jnp.arange(64.0)
    saved(tmp_path, step, {"a": w, "b": w})
    like = {"a": w, "b": jnp.zeros(64, jnp.bfloat16)}
    with jzero.Checkpointer(tmp_path, step) as ckpt:
        got = ckpt.restore(like=like, cast=True)
    assert got["a"].dtype == jnp.float32 and got["b"].dtype == jnp.bfloat16
    for leaf in got.values():
        np.testing.assert_array_equal(leaf, w.astype(leaf.dtype))


def test_a_store_that_is_not_as_its_manifest_says(tmp_path: Path) -> None:
    step = make_step()
    saved(tmp_path, step, {"a": jnp.ones(16), "b": jnp.ones(16)})
    path = tmp_path / "0" / "jzero" / "manifest.json"
    path.write_text(path.read_text().replace("16\n", "24\n"))
    sums = tmp_path / "0" / "jzero" / "checksums.json"
    assert path.stat().st_size in {
        entry["bytes"] for entry in json.loads(sums.read_text())["files"].values()
    }
    like = {"a": jnp.zeros(24), "b": jnp.zeros(24)}
    with (
        jzero.Checkpointer(tmp_path, step) as ckpt,
        pytest.raises(jzero.CheckpointError, match=r"a +has \(16,\)(.|\n)*b +has"),
    ):
        ckpt.restore(like=like)


class OnHost:
    """A step whose plan keeps some leaves in the memory of the host."""

    def __init__(self, step: Any) -> None:
        self.step = step

    def view(self, state: Any) -> Any:
        view = self.step.view(state)
        leaves = tuple(map(moved, view.plan.state))
        return replace(view, plan=replace(view.plan, state=leaves))


def moved(leaf: LeafPlan) -> LeafPlan:
    return replace(leaf, memory_kind="pinned_host") if "mu" in leaf.path else leaf


def test_the_memory_of_the_plan_is_honoured_both_ways(tmp_path: Path) -> None:
    step = make_step()
    state = {"w": jnp.arange(64.0).reshape(16, 4), "mu": jnp.arange(16.0)}
    saved(tmp_path / "on_device", step, step.shard(state))
    with jzero.Checkpointer(tmp_path / "on_device", OnHost(step)) as ckpt:
        offloaded = ckpt.restore(like=state)
    assert offloaded["mu"].sharding.memory_kind == "pinned_host"
    assert offloaded["w"].sharding.memory_kind in (None, "device")
    assert_same(whole(offloaded), whole(state))
    saved(tmp_path / "on_host", OnHost(step), offloaded)
    with jzero.Checkpointer(tmp_path / "on_host", step) as ckpt:
        back = ckpt.restore(like=state)
    assert back["mu"].sharding.memory_kind in (None, "device")
    assert_same(whole(back), whole(state))
