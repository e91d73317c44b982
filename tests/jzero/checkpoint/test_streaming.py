"""Arrays arrive whole, wherever they were saved and go; with little in flight."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jzero
from jzero.checkpoint import raw_chunks, streaming
from jzero.checkpoint.store import open_arrays
from jzero.checkpoint.streaming import Wanted, read_arrays
from jzero.errors import CheckpointError

SHAPES = ((16, 24), (8, 8, 16), (64,), ())
SPECS: tuple[tuple[Any, ...], ...] = (
    (), (None, "data"), ("model", "data"), (("data", "model"),),
)  # fmt: skip
ROOT = Path(__file__).resolve().parents[3]


def placed(num_devices: int, spec: tuple[Any, ...], rank: int) -> NamedSharding:
    devices = np.array(jax.devices()[:num_devices]).reshape(-1, min(num_devices, 2))
    mesh = Mesh(devices, ("data", "model"))
    return NamedSharding(mesh, PartitionSpec(*spec[:rank]))


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.asarray(np.random.default_rng(len(shape)).normal(size=shape)).astype(
        dtype
    )


@pytest.fixture(scope="module", params=[True, False], ids=["compressed", "raw"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: Any) -> epath.Path:
    """Arrays of every shape, from one device and from eight, in every split."""
    where = tmp_path_factory.mktemp("arrays") / "x"
    arrays = {
        f"{s}-{k}-{n}": jax.device_put(
            numbers(shape, "float32"), placed(n, spec, len(shape))
        )
        for s, shape in enumerate(SHAPES)
        for k, spec in enumerate(SPECS)
        for n in (1, 8)
    }
    handler = ocp.PyTreeCheckpointHandler(use_compression=request.param)
    with ocp.Checkpointer(handler) as orbax:
        orbax.save(where, ocp.args.PyTreeSave(arrays))
    return epath.Path(where)


@pytest.mark.parametrize(
    ("piece_bytes", "most_bytes"), [(64, 2**20), (64, 0), (2**20, 2**20), (2**20, 0)]
)
@pytest.mark.parametrize("num_devices", [1, 4, 8])
def test_from_any_split_to_any_other(
    folder: epath.Path,
    num_devices: int,
    piece_bytes: int,
    most_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pieces of 64 bytes are parts of chunks, and none is small enough to be whole.

    Where nothing may be in flight, every part is too large to be whole on the host.
    """
    monkeypatch.setattr(streaming, "_MOST_BYTES", most_bytes)
    monkeypatch.setattr(streaming, "_PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(streaming, "_SMALL_BYTES", 128)
    monkeypatch.setattr(raw_chunks, "_LEAST_BYTES", 0)
    stored = open_arrays(folder)
    spec = SPECS[num_devices // 2 % len(SPECS)]
    wanted = [
        Wanted(array=a, dtype=a.dtype, sharding=placed(num_devices, spec, len(a.shape)))
        for a in stored.values()
    ]
    for each, array in zip(wanted, read_arrays(wanted), strict=True):
        assert array.sharding == each.sharding
        expected = numbers(each.array.shape, "float32")
        np.testing.assert_array_equal(np.asarray(array), expected, each.array.path)


@pytest.mark.parametrize("most_bytes", (2**20, 0))
def test_a_cast_goes_into_the_new_dtype(
    folder: epath.Path, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "_MOST_BYTES", most_bytes)
    stored = open_arrays(folder)["0-3-8"]
    place = placed(8, (None, "data"), 2)
    dtype = np.dtype(jnp.bfloat16)
    (got,) = read_arrays([Wanted(array=stored, dtype=dtype, sharding=place)])
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got, numbers(SHAPES[0], "float32").astype(dtype))


@pytest.mark.parametrize("most_bytes", (2**20, 0))
def test_what_arrives_is_donated_in_place(
    folder: epath.Path, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX owns it, rather than a piece of memory of numpy."""
    monkeypatch.setattr(streaming, "_MOST_BYTES", most_bytes)
    stored = open_arrays(folder)["1-3-8"]
    place = placed(8, ("data",), 2)
    (got,) = read_arrays([Wanted(array=stored, dtype=stored.dtype, sharding=place)])
    before = {s.data.unsafe_buffer_pointer() for s in got.addressable_shards}
    update = jax.jit(lambda x: x + 1, donate_argnums=0, out_shardings=place)
    after = {s.data.unsafe_buffer_pointer() for s in update(got).addressable_shards}
    assert before == after


def test_an_array_that_is_gone_is_named(tmp_path: Path) -> None:
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False)
    with ocp.Checkpointer(handler) as orbax:
        orbax.save(tmp_path / "x", ocp.args.PyTreeSave({"w": jnp.ones((16, 8))}))
    stored = open_arrays(epath.Path(tmp_path / "x"))["w"]
    (tmp_path / "x" / "w" / "0.0").unlink()
    place = placed(8, ("data",), 2)
    with pytest.raises(CheckpointError, match="w cannot be read"):
        read_arrays([Wanted(array=stored, dtype=stored.dtype, sharding=place)])


PROGRAM = """
import re, sys
from pathlib import Path
import jax, numpy as np
import jzero

def memory(field):
    text = Path("/proc/self/status").read_text()
    return int(re.search(field + r":\\s+(\\d+)", text)[1]) / 1024

step = jzero.shard_train_step(lambda s, x: (s, x.sum()))
with jzero.Checkpointer(sys.argv[1], step) as ckpt:
    ckpt.restore(1, like={"a": jax.ShapeDtypeStruct((8, 8), np.float32)})
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    shapes = {"a": (16384, 1024)} | {f"b{i}": (2048, 1024) for i in range(4)}
    like = {k: jax.ShapeDtypeStruct(v, np.float32) for k, v in shapes.items()}
    jax.block_until_ready(ckpt.restore(0, like=like))
    print("EXTRA", memory("VmHWM") - before - 96)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak of memory")
def test_memory_rises_by_the_state_and_less_than_its_largest_leaf(
    tmp_path: Path,
) -> None:
    """A state of 96 MiB with a leaf of 64, in a process of its own."""
    step = jzero.shard_train_step(lambda s, x: (s, x.sum()))
    shapes = {"a": (16384, 1024)} | {f"b{i}": (2048, 1024) for i in range(4)}
    ones = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    with jzero.Checkpointer(tmp_path, step, snapshot="blocking") as ckpt:
        ckpt.save(0, step.shard(ones))
        ckpt.save(1, step.shard({"a": ones["a"][:8, :8]}))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    printed = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    found = re.search(r"EXTRA (-?[\d.]+)", printed)
    assert found is not None and float(found[1]) < 64
