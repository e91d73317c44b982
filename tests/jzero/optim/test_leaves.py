"""Which leaves are stored how, and which are refused."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
import pytest

from jzero.errors import ConfigError
from jzero.optim.leaves import EMBEDDINGS, Storage, decay_flags, list_leaves

PARAMS = {
    "Embed_0": {"embedding": jnp.zeros((64, 256))},
    "wte": jnp.zeros((64, 256)),
    "dense": {"kernel": jnp.zeros((64, 256)), "bias": jnp.zeros(256)},
    "odd": jnp.zeros((4099, 7)),
}


def storage(**changes: Any) -> Storage:
    values: dict[str, Any] = {
        "is_coded": True,
        "min_coded_elems": 4096,
        "keep_float32": EMBEDDINGS,
        "param_dtype": None,
        "is_stochastic": False,
    }
    return Storage(**(values | changes))


def tiles(**changes: Any) -> dict[str, Any]:
    return {leaf.path: leaf.tile for leaf in list_leaves(PARAMS, storage(**changes))}


def test_embeddings_small_leaves_and_odd_shapes_stay_float32() -> None:
    coded = {path: tile for path, tile in tiles().items() if tile}
    assert coded == {"['dense']['kernel']": (1, 256)}
    assert len([t for t in tiles(keep_float32=()).values() if t]) == 3
    assert tiles(min_coded_elems=0)["['dense']['bias']"] == (256,)
    assert not any(tiles(is_coded=False).values())


@pytest.mark.parametrize(
    ("path", "is_kept"),
    [
        ("['params']['Embed_0']['embedding']", True),
        ("['tokens_embed'].embedding", True),
        ("['transformer']['wte']", True),
        ("['unembed']['kernel']", False),
        ("['embed_out']['kernel']", False),
        ("['patch_embed']['kernel']", False),
        ("['pos_embed']", False),
        ("['PositionEmbedding_0']['embedding']", False),
        ("['transformer']['wpe']", False),
        ("['composed_embed']", True),
        ("['head']['kernel']", False),
    ],
)
def test_tables_of_tokens_alone_count_as_embeddings(path: str, is_kept: bool) -> None:
    assert any(re.search(pattern, path) for pattern in EMBEDDINGS) is is_kept


def test_other_dtypes_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"(?s)float32 parameters.*\['b'\].*bfloat16"):
        list_leaves(
            {"a": jnp.ones(2), "b": jnp.ones(2, jnp.bfloat16)},
            storage(param_dtype=jnp.float32),
        )
    with pytest.raises(ConfigError, match=r"(?s)no floats.*\['n'\]"):
        list_leaves({"n": jnp.arange(3)}, storage())
    with pytest.raises(ConfigError, match="no effect"):
        list_leaves({"a": jnp.ones(2)}, storage(is_stochastic=True))


def test_masks_as_optax_reads_them() -> None:
    params = {"a": {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}, "c": jnp.ones(2)}
    assert decay_flags(None, params) == [True] * 3
    assert decay_flags({"a": False, "c": True}, params) == [False, False, True]

    def matrices(tree: Any) -> Any:
        return {"a": {k: v.ndim > 1 for k, v in tree["a"].items()}, "c": False}

    assert decay_flags(matrices, params) == [False, True, False]
    with pytest.raises(ConfigError, match="structure"):
        decay_flags({"a": True}, params)
