from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jzero
from jzero.audit.aliases import Argument
from jzero.audit.findings.finding import Finding
from jzero.audit.findings.planned import (
    find_left_whole,
    find_lost_donations,
    find_no_effect,
)
from jzero.plan.plan import Plan


def plan_of(shape: tuple[int, ...], stage: int = 3, **settings: Any) -> Plan:
    def train_step(state: Any, x: jax.Array):
        return jax.tree.map(lambda w: w - x.mean(), state), x.sum()

    step = jzero.shard_train_step(
        train_step, stage=stage, config=jzero.ZeroConfig(**settings)
    )
    state = {
        "odd": jax.ShapeDtypeStruct(shape, jnp.float32),
        "small": jax.ShapeDtypeStruct((7,), jnp.float32),
        "w": jax.ShapeDtypeStruct((128, 256), jnp.float32),
    }
    return step.plan(state, jax.ShapeDtypeStruct((8, 2), jnp.float32))


def test_a_large_leaf_that_does_not_divide() -> None:
    (found,) = find_left_whole(plan_of((201, 203)))
    assert (found.kind, found.where) == ("left-whole", "state['odd']")
    assert found.num_bytes == 201 * 203 * 4
    assert "[201, 203]" in found.detail
    assert str(201 * 203) in found.remedy


def test_padding_helps_only_what_is_trained() -> None:
    def train_step(state: Any, x: jax.Array):
        grad = jax.grad(lambda w: (x @ w).sum())(state["w"])
        return {"w": state["w"] - grad, "seen": state["seen"] * 0.9}, x.sum()

    state = {
        "seen": jax.ShapeDtypeStruct((256, 256), jnp.float32),
        "w": jax.ShapeDtypeStruct((131, 129), jnp.float32),
    }
    x = jax.ShapeDtypeStruct((8, 131), jnp.float32)
    step = jzero.shard_train_step(train_step, config=jzero.ZeroConfig(params=["w"]))
    found = {f.where: f.remedy for f in find_left_whole(step.plan(state, x))}
    assert "pad a dim" in found["state['w']"]
    assert "pad" not in found["state['seen']"]
    assert "persistence_threshold" in found["state['seen']"]


@pytest.mark.parametrize(
    ("shape", "stage", "settings"),
    [
        ((201, 203), 0, {}),  # nothing is meant to be split
        ((200, 203), 3, {}),  # a dim divides
        ((121, 123), 3, {}),  # below the threshold
        ((121, 123), 3, {"persistence_threshold": 0}),  # not worth anyone's time
        ((201, 203), 3, {"persistence_threshold": 201 * 203 + 1}),  # as wished
    ],
)
def test_leaves_that_are_whole_for_a_reason(
    shape: tuple[int, ...], stage: int, settings: dict[str, Any]
) -> None:
    assert list(find_left_whole(plan_of(shape, stage, **settings))) == []


def lost(*arguments: tuple[tuple[int, int], bool]) -> list[Finding]:
    plan = plan_of((64, 512))
    leaves = {(0, i): leaf for i, leaf in enumerate(plan.state)}
    return list(
        find_lost_donations(
            [
                Argument(
                    number=i,
                    position=position,
                    name=f"p{i}",
                    num_bytes=64,
                    memory_space=0,
                    is_reused=is_reused,
                )
                for i, (position, is_reused) in enumerate(arguments)
            ],
            leaves,
        )
    )


def test_buffers_that_no_result_takes_over() -> None:
    assert lost(((0, 0), True), ((0, 1), False), ((0, 2), True)) == []
    (found,) = lost(((0, 0), False), ((0, 2), True))
    assert (found.kind, found.where) == ("donation-lost", "state['odd']")
    assert found.num_bytes == 64 * 512 * 4 // 8
    assert "no result fits" in found.detail


def test_a_leaf_that_is_never_read() -> None:
    (found,) = lost(((0, 0), True), ((1, 0), False))
    assert found.where == "state['w']"
    assert "never read" in found.detail


@pytest.mark.parametrize(
    ("stage", "settings", "named"),
    [
        (0, {"gather_dtype": "param"}, ["gather_dtype='param'"]),
        (0, {"replicate_params": True}, ["replicate_params=True"]),
        (1, {"reduce_window_bytes": "1MiB"}, ["reduce_window_bytes=1048576"]),
        (2, {"prefetch_bytes": 0}, ["prefetch_bytes=0"]),
        (1, {"disable_passes": ("window",)}, ["disable_passes='window'"]),
        (
            0,
            {"disable_passes": ("reduce_at_birth", "gather_at_use")},
            ["disable_passes='reduce_at_birth'", "disable_passes='gather_at_use'"],
        ),
        (3, {"reduce_window_bytes": "1MiB", "prefetch_bytes": 0}, []),
        (3, {"disable_passes": ("window",)}, []),
        (2, {"replicate_params": True, "reduce_window_bytes": 0}, []),
        (1, {"gather_dtype": "param"}, []),
        (0, {}, []),
    ],
)
def test_settings_without_effect(
    stage: int, settings: dict[str, Any], named: list[str]
) -> None:
    found = list(find_no_effect(plan_of((64, 512), stage, **settings)))
    assert [f.where for f in found] == [f"ZeroConfig({name})" for name in named]
    assert all(f"stage {stage} does not use" in f.detail for f in found)
    assert all(f.num_bytes == 0 for f in found)
