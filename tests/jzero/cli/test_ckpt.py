"""`jzero ckpt`, as a person uses it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

from jzero.cli.app import main
from tests.jzero.checkpoint.saved_steps import write_foreign, write_step

ROOT = Path(__file__).resolve().parents[3]
W = jnp.arange(4096.0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a: steps 1 and 2, and an empty 3. Run b: step 1 with a damaged file."""
    folder = tmp_path_factory.mktemp("runs")
    tied = {"params/head": "params/w"}
    write_step(folder / "a", 1, {"params/w": W, "opt/mu": W}, tied)
    write_step(folder / "a", 2, {"params/w": W + 1, "opt/mu": W}, tied)
    shutil.copytree(folder / "a" / "1", folder / "b" / "1")
    (folder / "a" / "3").mkdir()
    data = max((folder / "b").rglob("d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    (folder / "damaged").write_text(data.name)
    write_foreign(folder / "c", 1, {"w": W})
    return folder


def run(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *arguments: object,
) -> tuple[int, str, str]:
    """Returns exit code, output and errors, each with single spaces."""
    monkeypatch.setenv("COLUMNS", "250")
    with pytest.raises(SystemExit) as stopped:
        main(("ckpt", *map(str, arguments)))
    said = capsys.readouterr()
    code = stopped.value.code
    assert isinstance(code, int | None)
    return code or 0, " ".join(said.out.split()), " ".join(said.err.split())


@pytest.fixture
def ckpt(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


def test_in_a_process_of_its_own(runs: Path, tmp_path: Path) -> None:
    # No terminal: no bar, and nothing but the answer.
    done = subprocess.run(
        [sys.executable, "-m", "jzero", "ckpt", "consolidate", "a", tmp_path / "o"],
        capture_output=True,
        text=True,
        check=False,
        cwd=runs,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 tensors of step 2, 16.4 kB, in 1 file" in done.stdout
    assert "params/head is params/w" in done.stdout
    assert (tmp_path / "o" / "model.safetensors").exists()


def test_ls(ckpt, runs: Path) -> None:
    code, out, _ = ckpt("ls", runs / "a")
    assert code == 0
    assert "1 complete" in out and "8 (data 8)" in out and "jzero 0.1.0" in out
    assert "3 INCOMPLETE" in out
    assert "params/head" in ckpt("ls", runs / "a", "--leaves")[1]
    assert "by Orbax without jzero" in ckpt("ls", runs / "c")[1]


def test_consolidate_with_every_option(ckpt, runs: Path, tmp_path: Path) -> None:
    command = ["consolidate", f"{runs / 'a'}@1", tmp_path / "out", "--what", "all"]
    command += ["--only", "params/*", "--only", "opt/*", "--dtype", "bfloat16"]
    command += ["--separator", ".", "--max-shard", "10kB", "--no-check"]
    code, out, _ = ckpt(*command)
    assert code == 0 and "2 tensors of step 1, 16.4 kB, in 2 files" in out
    assert "params.head is params.w" in out
    code, _, err = ckpt(*command)
    assert code == 1 and "--overwrite" in err and "Traceback" not in err
    assert ckpt(*command, "--overwrite")[0] == 0


def test_diff_has_the_exit_codes_of_diff(ckpt, runs: Path) -> None:
    a = runs / "a"
    assert ckpt("diff", f"{a}@1", f"{a}@1")[:2] == (0, "3 leaves, no difference")
    code, out, _ = ckpt("diff", f"{a}@1", a)
    assert code == 1 and "2 of 3 leaves differ" in out
    assert "params/w values 1 4096 float32[4096] float32[4096]" in out
    assert ckpt("diff", f"{a}@1", a, "--atol", "1")[0] == 0
    code, _, err = ckpt("diff", f"{a}@1", f"{a}@9")
    assert code == 2 and "has no step 9" in err


def test_verify(ckpt, runs: Path) -> None:
    code, out, _ = ckpt("verify", f"{runs / 'a'}@1")
    assert code == 0 and "every byte as it was written" in out
    code, out, _ = ckpt("verify", runs / "b")
    damaged = (runs / "damaged").read_text()
    assert code == 1 and "DAMAGED" in out and damaged in out
    code, out, _ = ckpt("verify", runs / "c")
    assert code == 2 and "no checksums to compare with" in out
    code, _, err = ckpt("verify", runs / "nowhere")
    assert code == 2 and "does not exist" in err


def test_a_damaged_step_is_not_consolidated(ckpt, runs: Path, tmp_path: Path) -> None:
    code, _, err = ckpt("consolidate", runs / "b", tmp_path / "out")
    assert code == 1 and "is damaged" in err and "--no-check" in err
    assert not (tmp_path / "out").exists()


def test_without_the_libraries(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A library that is not there, to Python: an entry of None.
    code = (
        "import sys\n"
        "sys.modules['tensorstore'] = None\n"
        "from jzero.cli.app import main\n"
        "main(['ckpt', 'ls', sys.argv[1]])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(runs / "a")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 1 and "jzero[checkpoint]" in done.stderr
    assert "tensorstore" in done.stderr and "Traceback" not in done.stderr
