"""Files are filled in order, and the index finds every tensor."""

from __future__ import annotations

import json

import numpy as np
import pytest

from jzero.checkpoint.shards import (
    about_text,
    index_text,
    is_output_name,
    split_shards,
)
from jzero.checkpoint.tensor_file import Tensor


def tensors(*sizes: int) -> list[Tensor]:
    return [
        Tensor(name=f"t{i}", dtype=np.dtype("uint8"), shape=(size,))
        for i, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ((), [[]]),
        ((4, 4), [["t0", "t1"]]),
        ((6, 6, 4), [["t0"], ["t1", "t2"]]),
        ((30, 1), [["t0"], ["t1"]]),
        ((1, 30, 0), [["t0"], ["t1"], ["t2"]]),
    ],
)
def test_files_hold_no_more_than_they_may(
    sizes: tuple[int, ...], groups: list[list[str]]
) -> None:
    shards = split_shards(tensors(*sizes), max_bytes=10)
    assert [[tensor.name for tensor in shard.tensors] for shard in shards] == groups
    assert all(is_output_name(shard.name) for shard in shards)
    assert len({shard.name for shard in shards}) == len(shards)


def test_the_index_names_the_file_of_each_tensor() -> None:
    shards = split_shards(tensors(6, 6), max_bytes=10)
    index = json.loads(index_text(shards, {"step": 3}))
    assert index["metadata"] == {"total_size": 12, "jzero": {"step": 3}}
    assert index["weight_map"] == {"t0": shards[0].name, "t1": shards[1].name}


def test_a_file_says_texts_only() -> None:
    about = about_text({"step": 3, "plan": {"stage": 1}})
    assert all(isinstance(value, str) for value in about.values())
    assert json.loads(about["jzero"])["plan"] == {"stage": 1}


def test_names_of_others_are_told_apart() -> None:
    assert not is_output_name("notes.txt") and not is_output_name("weights.safetensors")
