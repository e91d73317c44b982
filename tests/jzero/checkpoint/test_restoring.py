"""The position of the data comes back with the state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grain
import jax.numpy as jnp
import numpy as np
import pytest

import jzero
from tests.jzero.checkpoint.small import make_step, saved

STATE = {"w": jnp.ones((16, 4))}


def loader() -> Any:
    """Shuffled rows, as grain hands them out."""
    numbers = grain.MapDataset.range(64).shuffle(seed=3).map(np.float32)
    return iter(numbers.batch(4).to_iter_dataset())


def test_an_iterator_of_grain_goes_on_where_it_was(tmp_path: Path) -> None:
    step = make_step()
    mine = loader()
    [next(mine) for _ in range(5)]
    with jzero.Checkpointer(tmp_path, step) as ckpt:
        ckpt.save(4, STATE, data=mine)
        other = loader()
        ckpt.restore(like=STATE, data=other)
        _, start = ckpt.restore_or_init(lambda: STATE, data=loader())
    assert start == 5
    for want, got in zip(mine, other, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_step_without_a_position_says_so(tmp_path: Path) -> None:
    step = make_step()
    saved(tmp_path, step, STATE)
    with (
        jzero.Checkpointer(tmp_path, step) as ckpt,
        pytest.raises(jzero.CheckpointError, match="without data="),
    ):
        ckpt.restore(like=STATE, data=loader())


def test_a_store_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A change that keeps every length; the records of the store cover themselves."""
    step = make_step()
    saved(tmp_path, step, STATE)
    for path in (tmp_path / "0" / "state").rglob("manifest.ocdbt"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 255
        path.write_bytes(content)
    with (
        jzero.Checkpointer(tmp_path, step) as ckpt,
        pytest.raises(jzero.CheckpointError, match="jzero ckpt verify"),
    ):
        ckpt.restore(like=STATE)
