"""Consolidated files hold every bit, and the `safetensors` package alone reads them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from jzero.checkpoint.consolidating import consolidate
from jzero.checkpoint.loading import load_consolidated
from jzero.errors import CheckpointError, ConfigError
from tests.jzero.checkpoint.saved_steps import (
    ALIASES,
    grow,
    role_of,
    sharded,
    stored_bytes,
    write_foreign,
    write_step,
)

ROOT = Path(__file__).resolve().parents[3]


def index_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "model.safetensors.index.json").read_text())


def test_every_bit_of_every_kind_of_leaf(
    run: Path, leaves: dict[str, Any], tmp_path: Path
) -> None:
    done = consolidate(run, tmp_path / "out", what="all")
    loaded = load_consolidated(done.folder)
    assert set(loaded) == {*leaves, *ALIASES}
    for path, leaf in leaves.items():
        assert stored_bytes(loaded[path]) == stored_bytes(leaf), path
    assert loaded["nibbles"].dtype == ml_dtypes.int4
    assert loaded["complex"].dtype == np.complex128
    assert loaded["rare"].dtype == ml_dtypes.float8_e4m3b11fnuz
    assert loaded["eighths"].dtype == ml_dtypes.float8_e4m3fn
    assert loaded["params/empty"].shape == (0, 3)
    assert loaded["params/scalar"].shape == ()
    # Bytes of the numbers, and next to nothing beside them.
    file_bytes = (done.folder / "model.safetensors").stat().st_size
    assert 0 < file_bytes - done.size_bytes < 4096


def test_safetensors_alone_reads_them(
    run: Path, leaves: dict[str, Any], tmp_path: Path
) -> None:
    code = (
        "import sys, ml_dtypes\n"
        "from safetensors.numpy import load_file\n"
        "tensors = load_file(sys.argv[1])\n"
        "assert not {'jax', 'jzero', 'orbax'} & set(sys.modules)\n"
        "print(tensors['params/half'].dtype, tensors['params/rows'].tobytes().hex())\n"
    )
    done = consolidate(run, tmp_path / "out")
    file = str(done.folder / "model.safetensors")
    printed = subprocess.check_output([sys.executable, "-c", code, file], text=True)
    dtype, text = printed.split()
    assert dtype == "bfloat16"
    assert text == stored_bytes(leaves["params/rows"]).hex()


@pytest.mark.parametrize("what", ["params", "optimizer", "other", "params,optimizer"])
def test_what(run: Path, leaves: dict[str, Any], tmp_path: Path, what: str) -> None:
    roles = {"params": "parameter"}
    wanted = {roles.get(word, word) for word in what.split(",")}
    done = consolidate(run, tmp_path / "out", what=what)
    names = {path for path in leaves if role_of(path) in wanted}
    assert set(index_of(done.folder)["weight_map"]) == names
    assert done.num_tensors == len(names)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_only_floating_leaves_are_rounded(
    run: Path, leaves: dict[str, Any], tmp_path: Path, dtype: str
) -> None:
    done = consolidate(
        run, tmp_path / "out", what="all", only=["[!w]*"], dtype=dtype, check=False
    )
    loaded = load_consolidated(done.folder)
    assert "wide" not in loaded
    for path in ("params/rows", "params/half", "params/scalar", "opt/mu/rows", "rare"):
        expected = np.asarray(leaves[path]).astype(jnp.dtype(dtype))
        assert loaded[path].dtype == expected.dtype
        np.testing.assert_array_equal(loaded[path], expected)
    for path in ("opt/count", "table", "nibbles", "flags", "rng", "complex"):
        assert stored_bytes(loaded[path]) == stored_bytes(leaves[path])


def test_numbers_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    write_step(tmp_path / "run", 1, {"params/w": jnp.asarray([1.0, 70000.0, jnp.inf])})
    with pytest.raises(CheckpointError, match=r"float16(.|\n)*params/w +1 numbers"):
        consolidate(tmp_path / "run", tmp_path / "out", dtype="float16")
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_tied_leaves_are_written_once(
    run: Path, leaves: dict[str, Any], tmp_path: Path
) -> None:
    done = consolidate(run, tmp_path / "out", separator=".")
    assert done.aliases == {"params.tied": "params.odd"}
    with safe_open(done.folder / "model.safetensors", "np") as file:
        assert "params.tied" not in file.keys()  # noqa: SIM118
        about = json.loads(file.metadata()["jzero"])
    assert about["aliases"] == done.aliases
    loaded = load_consolidated(done.folder)
    assert stored_bytes(loaded["params.tied"]) == stored_bytes(leaves["params/odd"])
    # Alone, the alias is the leaf.
    alone = consolidate(run, tmp_path / "alone", only=["params/tied"])
    assert alone.aliases == {} and alone.num_tensors == 1


def test_files_of_bounded_size_and_an_index(
    run: Path, leaves: dict[str, Any], tmp_path: Path
) -> None:
    done = consolidate(run, tmp_path / "out", max_shard_bytes=700)
    names = [f"model-{i:05d}-of-{len(done.files):05d}.safetensors" for i in (1, 2)]
    assert list(done.files[:2]) == names
    index = index_of(done.folder)
    assert index["metadata"]["total_size"] == done.size_bytes
    for name, file in index["weight_map"].items():
        tensors = load_file(done.folder / file)
        assert stored_bytes(tensors[name]) == stored_bytes(leaves[name])
        assert len(tensors) == 1 or sum(t.nbytes for t in tensors.values()) <= 700
    with safe_open(done.folder / done.files[1], "np") as file:
        about = json.loads(file.metadata()["jzero"])
    assert about["step"] == index["metadata"]["jzero"]["step"] == done.step == 100
    assert about["plan"]["mesh"] == {"data": 8} and about["plan"]["stage"] == 3
    assert "jax" in about["versions"]


def test_keys_with_dots_get_one_name_only_by_slashes(tmp_path: Path) -> None:
    leaves = {"params/a.b": jnp.ones(2), "params/a/b": jnp.zeros(2)}
    write_step(tmp_path / "run", 1, leaves)
    with pytest.raises(CheckpointError, match=r"params\.a\.b +params/a\.b, params/a/b"):
        consolidate(tmp_path / "run", tmp_path / "out", separator=".")
    assert consolidate(tmp_path / "run", tmp_path / "out").num_tensors == 2


def test_what_is_in_the_way_stays_unless_told(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    consolidate(run, out, max_shard_bytes=700)
    with pytest.raises(CheckpointError, match="is there already"):
        consolidate(run, out)
    consolidate(run, out, overwrite=True)
    assert sorted(path.name for path in out.iterdir()) == [
        "model.safetensors",
        "model.safetensors.index.json",
    ]
    (out / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"not replaced(.|\n)*notes\.txt"):
        consolidate(run, out, overwrite=True)
    assert (out / "notes.txt").read_text() == "mine"


def test_a_damaged_step_is_not_consolidated(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((16, 4096), dtype="float32")
    rows = sharded(jnp.asarray(values), "data")
    folder = write_step(tmp_path / "run", 1, {"params/w": rows}, compress=False)
    # Wherever these numbers are: a save that was disturbed may have left them twice.
    for data in (folder / "state").rglob("d/*"):
        content = bytearray(data.read_bytes())
        if (found := content.find(values[5].tobytes())) >= 0:
            content[found] ^= 1
            data.write_bytes(content)
            name = data.name
    with pytest.raises(CheckpointError, match=f"damaged(.|\n)*{name}"):
        consolidate(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    # The store does not notice: without the checksums a wrong number comes out.
    done = consolidate(tmp_path / "run", tmp_path / "out", check=False)
    loaded = load_consolidated(done.folder)["params/w"]
    assert (loaded != values).sum() == 1


def test_where_arrays_cannot_be_opened_the_file_is_named(
    run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    # The nodes of the store's tree do have checksums.
    (path,) = (copy / "100" / "state" / "d").iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"damaged(.|\n)*{path.name}"):
        consolidate(copy, tmp_path / "out")
    with pytest.raises(CheckpointError, match="cannot be opened"):
        consolidate(copy, tmp_path / "out", check=False)


def test_a_full_disk_is_told_with_path_and_bytes(run: Path, tmp_path: Path) -> None:
    # The limit on file sizes is met in the midst of writing, as the end of a disk is.
    code = (
        "import resource, sys\n"
        "from jzero.checkpoint import consolidate\n"
        "from jzero.errors import CheckpointError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))\n"
        "try:\n"
        "    consolidate(sys.argv[1], sys.argv[2])\n"
        "except CheckpointError as error:\n"
        "    print(error)\n"
    )
    out = tmp_path / "out"
    told = subprocess.check_output(
        [sys.executable, "-c", code, str(run), str(out)], text=True, cwd=ROOT
    )
    assert "model.safetensors" in told and "bytes) could not be written" in told
    assert list(tmp_path.iterdir()) == []


def test_more_than_the_disk_holds_is_refused_at_once(tmp_path: Path) -> None:
    # A store may promise an array of which it has no chunk.
    folder = write_foreign(tmp_path / "run", 1, {"w": jnp.zeros(2)})
    grow(folder / "state", "w", 2**50)
    with pytest.raises(CheckpointError, match=r"out needs \d{16} bytes, but its disk"):
        consolidate(folder, tmp_path / "out", what="all")


def test_no_backend_is_started(run: Path, tmp_path: Path) -> None:
    # On a machine whose accelerator trains, even asking for it would take it away.
    code = (
        "import sys\n"
        "from jzero.checkpoint import consolidate, diff, list_checkpoints, verify\n"
        "run, out = sys.argv[1:]\n"
        "list_checkpoints(run), verify(run), diff(run, run)\n"
        "print(consolidate(run, out, what='all').num_tensors)\n"
    )
    env = {**os.environ, "JAX_PLATFORMS": "no_such_platform"}
    printed = subprocess.check_output(
        [sys.executable, "-c", code, str(run), str(tmp_path / "out")],
        text=True,
        cwd=ROOT,
        env=env,
    )
    assert int(printed) > 10


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"dtype": "int8"}, "not among same, float32"),
        ({"what": "weights"}, "not among params, optimizer, other, all"),
        ({"separator": "::"}, "neither '/' nor '.'"),
        ({"max_shard_bytes": "much"}, "max_shard_bytes"),
    ],
)
def test_settings_out_of_range(
    run: Path, tmp_path: Path, settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        consolidate(run, tmp_path / "out", **settings)


def test_nothing_wanted_is_an_error(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no leaf(.|\n)*optimizer +2 leaves"):
        consolidate(run, tmp_path / "out", what="optimizer", only=["params/*"])


def test_what_orbax_wrote_alone(tmp_path: Path) -> None:
    tree = {"layer": {"w": sharded(jnp.arange(16.0), "data")}, "steps": [jnp.int32(3)]}
    write_foreign(tmp_path / "run", 5, tree, item="default")
    with pytest.raises(CheckpointError, match=r"without jzero(.|\n)*--what all"):
        consolidate(tmp_path / "run", tmp_path / "out")
    done = consolidate(tmp_path / "run", tmp_path / "out", what="all", separator=".")
    loaded = load_consolidated(done.folder)
    assert set(loaded) == {"layer.w", "steps.0"} and done.step == 5
    np.testing.assert_array_equal(loaded["layer.w"], np.arange(16.0))


def test_memory_is_bounded_by_pieces_and_not_by_the_state(tmp_path: Path) -> None:
    rows = np.zeros((16 * 1024, 4096), "float32")  # 268 MB, in chunks of 34 MB
    write_step(tmp_path / "run", 1, {"params/w": sharded(rows, "data")})
    # Not ru_maxrss: a child begins with the peak of its parent.
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from jzero.checkpoint import consolidate\n"
        "def peak_bytes():\n"
        "    lines = Path('/proc/self/status').read_text().splitlines()\n"
        "    return 1024 * int(next(x for x in lines if 'VmHWM' in x).split()[1])\n"
        "before = peak_bytes()\n"
        "consolidate(sys.argv[1], sys.argv[2])\n"
        "print(peak_bytes() - before)\n"
    )
    arguments = [str(tmp_path / "run"), str(tmp_path / "out")]
    printed = subprocess.check_output(
        [sys.executable, "-c", code, *arguments], text=True, cwd=ROOT
    )
    # A piece in each of several stages; 300 MB and more if an array were ever whole.
    assert 0 < int(printed) < 200e6


def test_an_array_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    rows = sharded(jnp.asarray(np.random.default_rng(0).random((16, 4096))), "data")
    folder = write_foreign(tmp_path / "run", 1, {"w": rows})
    for path in (folder / "state").rglob("ocdbt.process_0/d/*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=r"^w cannot be read"):
        consolidate(tmp_path / "run", tmp_path / "out", what="all")
    assert not (tmp_path / "out").exists()
