"""Saving and restoring a training: the same run, on any devices, in one compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import jzero
from tests.end_to_end.oracle import CompileCounter
from tests.jzero.checkpoint.small import (
    assert_same,
    begin,
    bits,
    create,
    make_step,
    saved,
    train,
    train_step,
    whole,
)

NUM_STEPS = 6
SAVED_AT = 2


@pytest.fixture(scope="module")
def step() -> Any:
    """One step for the tests that do not count what it compiles."""
    return make_step()


@pytest.fixture(scope="module")
def unbroken(
    step: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any, list[float]]:
    """A folder with step 2 of a run of six, the state saved, and all losses."""
    folder = tmp_path_factory.mktemp("unbroken")
    state, losses = train(step, begin(step), range(SAVED_AT + 1))
    saved(folder, step, state, SAVED_AT)
    kept = whole(state)
    _, more = train(step, state, range(SAVED_AT + 1, NUM_STEPS))
    return folder, kept, losses + more


def restored(folder: Path, step: Any) -> tuple[Any, int]:
    with jzero.Checkpointer(folder, step) as ckpt:
        return ckpt.restore_or_init(create, 7)


def test_the_same_run_goes_on_in_one_compile(unbroken: Any) -> None:
    folder, kept, losses = unbroken
    step = make_step()
    counter = CompileCounter("train_step")
    with counter:
        state, start = restored(folder, step)
        assert start == SAVED_AT + 1
        assert_same(whole(state), kept)
        _, more = train(step, state, range(start, NUM_STEPS))
    assert more == losses[start:]
    assert counter.count == 1
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))


@pytest.mark.parametrize(
    ("num_devices", "stage"), [(4, 3), (3, 3), (1, 3), (8, 0), (2, 1)]
)
def test_restored_onto_other_devices_and_stages(
    unbroken: Any, num_devices: int, stage: int
) -> None:
    folder, kept, losses = unbroken
    step = make_step(num_devices, stage)
    state, start = restored(folder, step)
    assert_same(whole(state), kept)
    plan = step.view(state).plan
    for leaf, planned in zip(jax.tree.leaves(state), plan.state, strict=True):
        assert leaf.sharding.device_set == set(jax.devices()[:num_devices])
        assert leaf.sharding.spec == planned.spec
        assert (leaf.sharding.memory_kind or "device") == planned.memory_kind
    if num_devices in (1, 4):
        _, more = train(step, state, range(start, NUM_STEPS))
        np.testing.assert_allclose(more, losses[start:], rtol=1e-6)


def test_restored_onto_another_mesh(unbroken: Any) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("replica", "fsdp"))
    config = jzero.ZeroConfig(
        axis="fsdp", batch_axis=("replica", "fsdp"), persistence_threshold=0
    )
    step = jzero.shard_train_step(train_step, mesh=mesh, config=config)
    state, start = restored(unbroken[0], step)
    assert_same(whole(state), unbroken[1])
    assert state.params["up"].sharding.mesh.shape == {"replica": 2, "fsdp": 4}
    _, more = train(step, state, range(start, start + 1))
    np.testing.assert_allclose(more, unbroken[2][start : start + 1], rtol=1e-6)


def test_nothing_to_restore_creates_a_state(tmp_path: Path, step: Any) -> None:
    state, start = restored(tmp_path / "new", step)
    assert start == 0
    assert_same(whole(state), whole(step.init(create, 7)))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("snapshot", ("host", "blocking"))
def test_a_save_in_flight_does_not_keep_the_state(
    tmp_path: Path, step: Any, snapshot: Any
) -> None:
    """What is saved is the state of that step, although its buffers are used again."""
    state, _ = train(step, begin(step), range(1))
    with jzero.Checkpointer(tmp_path, step, snapshot=snapshot) as ckpt:
        pointers, kept = [], []
        for i in range(4):
            kept.append(whole(state))
            ckpt.save(i, state)
            before = {
                s.data.unsafe_buffer_pointer()
                for leaf in jax.tree.leaves((state.params, state.opt_state))
                for s in leaf.addressable_shards
            }
            state, _ = train(step, state, range(1))
            after = {
                s.data.unsafe_buffer_pointer()
                for leaf in jax.tree.leaves((state.params, state.opt_state))
                for s in leaf.addressable_shards
            }
            pointers.append(before == after)
        ckpt.wait()
        for i in range(4):
            assert_same(whole(ckpt.restore(i, like=state)), kept[i])
    assert all(pointers), "buffers were not reused"


def test_keep_leaves_the_newest(tmp_path: Path, step: Any) -> None:
    state = begin(step)
    with jzero.Checkpointer(tmp_path, step, keep=2) as ckpt:
        assert ckpt.latest_complete_step is None
        for i in (3, 5, 8, 13):
            ckpt.save(i, state)
        ckpt.wait()
        assert ckpt.latest_complete_step == 13
        assert ckpt.incomplete_steps == ()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["13", "8"]


def test_a_step_that_is_not_the_newest_is_refused(tmp_path: Path, step: Any) -> None:
    state = begin(step)
    with jzero.Checkpointer(tmp_path, step) as ckpt:
        ckpt.save(5, state)
        for i in (5, 4):
            with pytest.raises(jzero.CheckpointError, match="holds step 5"):
                ckpt.save(i, state)


def test_parts_of_a_state(unbroken: Any) -> None:
    """Parameters alone, the optimizer alone, and what a function picks."""
    folder, kept, _ = unbroken
    step = make_step(4)
    mine = begin(step, 3)
    own = whole(mine)
    with jzero.Checkpointer(folder, step) as ckpt:
        state = ckpt.restore(like=mine, what="params")
        assert_same(state.params, kept.params)
        assert_same(whole(state)._replace(params=own.params), own)
        state = ckpt.restore(SAVED_AT, like=mine, what="optimizer")
        assert_same(whole(state.opt_state), kept.opt_state)
        assert_same(whole(state.params), own.params)
        state = ckpt.restore(like=mine, what=lambda path: path == "scale")
        assert_same(whole(state)._replace(scale=own.scale), own)
        with pytest.raises(jzero.StateError, match="'params', 'optimizer'"):
            ckpt.restore(like=mine, what="weights")  # type: ignore[arg-type]


def test_the_rest_is_created_where_there_is_no_state(step: Any, unbroken: Any) -> None:
    """Fine-tuning without a second state: parameters read, the rest born."""
    folder, kept, _ = unbroken
    with jzero.Checkpointer(folder, step) as ckpt:
        with pytest.raises(jzero.CheckpointError, match="like=state"):
            ckpt.restore(what="params")
        state = ckpt.restore(like=step.birth(create, 3), what="params")
    assert_same(whole(state.params), kept.params)
    assert_same(
        whole(state._replace(params=None)),
        whole(begin(step, 3)._replace(params=None)),
    )
    with jzero.Checkpointer(folder, step) as ckpt:
        ckpt.restore_or_init(create, 3)
        again = ckpt.restore(what=lambda path: path.startswith("params/"))
    assert_same(whole(again), whole(state))


def test_every_leaf_that_does_not_fit_is_named(
    tmp_path: Path, step: Any, unbroken: Any
) -> None:
    folder = unbroken[0]

    def other(seed: int = 0) -> Any:
        state = create(seed)
        params = {
            "up": jnp.zeros((24, 8)),
            "more": jnp.zeros((8,)),
            "down": state.params["down"].astype(jnp.bfloat16),
        }
        return state._replace(params=params, table=state.table.astype(jnp.float32))

    with jzero.Checkpointer(folder, step) as ckpt:
        with pytest.raises(jzero.MismatchError) as error:
            ckpt.restore_or_init(other)
        text = str(error.value)
        for part in (
            "params/up",
            "(24, 16) -> (24, 8)",
            "params/more",
            "is not in the checkpoint",
            "float32 -> bfloat16",
            "int32 -> float32",
            "cast=True",
            "strict=False",
        ):
            assert part in text
        state, report = ckpt.restore(like=step.init(other), strict=False)
        assert not report.fits
        assert report.missing == ("params/more",)
        assert [path for path, _ in report.retyped] == ["params/down", "table"]
        assert [path for path, _ in report.reshaped] == ["params/up"]
        assert "params/more" in str(report)
        assert bits(state.key) == bits(unbroken[1].key)
        state, report = ckpt.restore(like=step.init(other), strict=False, cast=True)
        assert dict(report.cast)["params/down"] == "float32 -> bfloat16"
    want = jnp.asarray(unbroken[1].params["down"]).astype(jnp.bfloat16)
    assert bits(state.params["down"]) == bits(want)
    assert float(state.table[1]) == 16777216.0


def test_incomplete_steps_are_told_and_left_out(
    tmp_path: Path, step: Any, unbroken: Any
) -> None:
    saved(tmp_path, step, begin(step), 1)
    (tmp_path / "4").mkdir()
    with (
        jzero.Checkpointer(tmp_path, step) as ckpt,
        pytest.warns(jzero.CheckpointWarning, match="holds no manifest"),
    ):
        state, start = ckpt.restore_or_init(create)
    assert start == 2
    with jzero.Checkpointer(tmp_path, step) as ckpt:
        with pytest.raises(jzero.CheckpointError, match="complete steps 1"):
            ckpt.restore(4, like=state)
        ckpt.save(4, state)
        ckpt.wait()
        assert ckpt.latest_complete_step == 4


def test_settings_that_make_no_sense_are_named(tmp_path: Path, step: Any) -> None:
    with pytest.raises(jzero.ConfigError) as error:
        jzero.Checkpointer(tmp_path, step, keep=0, snapshot="device", timeout_seconds=0)
    for part in ("keep", "snapshot", "timeout_seconds"):
        assert part in str(error.value)


def test_an_error_in_the_body_is_not_hidden(tmp_path: Path, step: Any) -> None:
    with (
        pytest.raises(KeyError, match="mine"),
        jzero.Checkpointer(tmp_path, step),
    ):
        raise KeyError("mine")
