"""Two steps are compared leaf by leaf, in every bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jzero.checkpoint.differing import LeafDiff, diff
from jzero.errors import CheckpointError
from tests.jzero.checkpoint.saved_steps import sharded, write_foreign, write_step

BASE = np.linspace(-1, 1, 64, dtype="float32").reshape(16, 4)


def changed(values: np.ndarray, at: tuple[int, ...], value: Any) -> np.ndarray:
    copy = np.array(values)
    copy[at] = value
    return copy


def pair(tmp_path: Path, a: dict[str, Any], b: dict[str, Any], **settings: Any) -> Any:
    write_step(tmp_path / "a", 1, a)
    write_step(tmp_path / "b", 2, b)
    return diff(tmp_path / "a", f"{tmp_path / 'b'}@2", **settings)


def test_a_step_and_itself(run: Path, leaves: dict[str, Any]) -> None:
    found = diff(run, f"{run}@100")
    assert found.is_same and found.num_leaves == len(leaves) + 1


def test_every_way_to_differ(tmp_path: Path) -> None:
    key = jax.random.key(0)
    a = {
        "same": jnp.asarray(BASE),
        # However it is sharded, the numbers count.
        "split": sharded(jnp.asarray(BASE), "data"),
        "gone": jnp.ones(3),
        "shape": jnp.ones((4, 2)),
        "dtype": jnp.asarray(BASE),
        "values": sharded(jnp.asarray(BASE), "data"),
        "zero": jnp.zeros(2),
        "nan": jnp.asarray([jnp.nan, 1.0]),
        "one_nan": jnp.asarray([jnp.nan, 1.0]),
        "inf": jnp.asarray([jnp.inf, jnp.inf]),
        "count": jnp.int32(7),
        "rng": key,
        "impl": key,
        "empty": jnp.zeros((0, 3)),
    }
    b = {
        **{path: leaf for path, leaf in a.items() if path != "gone"},
        "split": sharded(jnp.asarray(BASE), None),
        "new": jnp.int32(3),
        "shape": jnp.ones((2, 4)),
        "dtype": jnp.asarray(BASE + 0.001, "bfloat16"),
        "values": jnp.asarray(
            changed(changed(BASE, (3, 1), 5), (4, 0), BASE[4, 0] + 1)
        ),
        "zero": -jnp.zeros(2),
        "one_nan": jnp.asarray([1.0, 1.0]),
        "inf": jnp.asarray([jnp.inf, 1.0]),
        "count": jnp.int32(9),
        "rng": jax.random.key(1),
        "impl": jax.random.key(0, impl="rbg"),
        "empty": jnp.zeros((0, 4)),
    }
    found = {leaf.path: leaf for leaf in pair(tmp_path, a, b).leaves}
    assert not {"same", "split", "nan"} & set(found)
    kinds = {path: leaf.kind for path, leaf in found.items()}
    assert kinds == {
        **{"gone": "missing", "new": "missing", "shape": "shape", "empty": "shape"},
        **{"dtype": "dtype", "impl": "dtype", "values": "values", "zero": "values"},
        **{"one_nan": "values", "inf": "values", "count": "values", "rng": "values"},
    }
    assert found["gone"].second == "" and found["gone"].first == "float32[3]"
    assert found["values"].num_elems == 2
    assert found["values"].max_abs == pytest.approx(5 - BASE[3, 1])
    assert found["dtype"].max_abs == pytest.approx(0.001, abs=0.005)
    assert found["zero"].max_abs == 0.0 and found["zero"].num_elems == 2
    assert found["one_nan"].max_abs == found["inf"].max_abs == float("inf")
    assert found["count"].max_abs == 2.0
    assert found["rng"].max_abs is None


@pytest.mark.parametrize(
    ("atol", "is_same"), [(0.0, False), (1e-6, False), (1.1, True)]
)
def test_a_tolerance_when_asked(tmp_path: Path, atol: float, is_same: bool) -> None:
    a = {"w": jnp.asarray(BASE), "z": jnp.asarray([1 + 2j, 0j])}
    b = {"w": jnp.asarray(BASE + 1), "z": jnp.asarray([1 + 3j, 0j])}
    assert pair(tmp_path, a, b, atol=atol).is_same == is_same


def test_wide_complex_numbers(tmp_path: Path) -> None:
    a = {"z": np.asarray([1 + 2j, 3j])}
    (leaf,) = pair(tmp_path, a, {"z": np.asarray([1 + 2j, 4j])}).leaves
    assert isinstance(leaf, LeafDiff) and leaf.num_elems == 1 and leaf.max_abs == 1.0


def test_aliases_are_leaves_too(run: Path, tmp_path: Path, leaves: Any) -> None:
    write_step(tmp_path / "b", 1, {**leaves, "params/tied": leaves["params/odd"]})
    assert diff(run, tmp_path / "b").is_same


def test_steps_that_orbax_wrote_alone(tmp_path: Path) -> None:
    tree = {"params": {"w": jnp.asarray(BASE)}}
    write_foreign(tmp_path / "b", 1, tree, item="default")
    write_step(tmp_path / "a", 1, {"params/w": jnp.asarray(BASE)})
    assert diff(tmp_path / "a", tmp_path / "b").is_same


def test_trouble(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no step 7"):
        diff(run, f"{run}@7")
    shutil.copytree(run, tmp_path / "b")
    for path in (tmp_path / "b" / "100" / "state").rglob("d/*"):
        path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CheckpointError, match="cannot be"):
        diff(run, tmp_path / "b")
