from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import requires, version
from pathlib import Path

import pytest

from jzero.audit.setup_aot import (
    install_command,
    main,
    missing_wheels,
    required_wheels,
    setup,
)

ROOT = Path(__file__).resolve().parents[3]


def put_wheel(folder: Path, name: str, number: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{number}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n"
    )


def test_four_wheels_two_of_them_at_jaxlibs_version() -> None:
    wheels = required_wheels()
    assert len(wheels) == 4
    pinned = [wheel for wheel in wheels if wheel.endswith(f"=={version('jaxlib')}")]
    assert len(pinned) == 2


def test_nothing_installed(tmp_path: Path) -> None:
    assert missing_wheels([str(tmp_path)]) == required_wheels()


def test_other_versions_do_not_count(tmp_path: Path) -> None:
    put_wheel(tmp_path, "jax-cuda13-plugin", "0.0.1")
    put_wheel(tmp_path, "jax-cuda13-pjrt", version("jaxlib"))
    put_wheel(tmp_path, "nvidia-cuda-nvcc", "13.9.1")
    put_wheel(tmp_path, "nvidia-nvvm", "12.9.1")
    plugin, _, _, nvvm = required_wheels()
    assert missing_wheels([str(tmp_path)]) == (plugin, nvvm)


def test_libtpu_at_the_version_that_jax_names(tmp_path: Path) -> None:
    (wheel,) = required_wheels("tpu")
    assert re.fullmatch(r"libtpu==0\.0\.\d+\.\*", wheel)
    assert any(text.startswith(wheel) for text in requires("jax") or ())
    assert missing_wheels([str(tmp_path)], kind="tpu") == (wheel,)


@pytest.mark.parametrize(("last", "fits"), [(".1", True), ("", True), ("0.1", False)])
def test_a_version_with_a_star(tmp_path: Path, last: str, fits: bool) -> None:
    (wheel,) = required_wheels("tpu")
    number = wheel.removeprefix("libtpu==").removesuffix(".*")
    put_wheel(tmp_path, "libtpu", f"{number}{last}")
    assert (missing_wheels([str(tmp_path)], kind="tpu") == ()) == fits


def test_command_leaves_dependencies_out() -> None:
    command = install_command(["a==1"])
    assert command == (sys.executable, "-m", "pip", "install", "--no-deps", "a==1")
    assert install_command(["a==1"], quiet=True)[-2:] == ("-q", "a==1")


def test_extra_names_the_same_wheels_and_no_cuda_library() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["aot"]
    assert set(required_wheels()[2:]) < set(extra)
    (jax_extra,) = [text for text in extra if text.startswith("jax[")]
    name = jax_extra[jax_extra.index("[") + 1 : jax_extra.index("]")]
    wanted = [text for text in requires("jax") or () if f'"{name}"' in text]
    plugin = [text for text in wanted if text.startswith("jax-cuda13-plugin")]
    assert len(plugin) == 1
    assert "with-cuda" not in plugin[0]
    assert version("jaxlib") in plugin[0]


def test_unknown_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gpu"]) == 2
    assert "unknown: --gpu" in capsys.readouterr().err


def test_pips_failure_is_shown_with_the_command(tmp_path: Path) -> None:
    # A Python without pip, and no packages but what setup itself imports.
    venv.create(tmp_path / "bare", with_pip=False)
    shown = tmp_path / "shown"
    shown.mkdir()
    names = ("rich", "pygments", "markdown_it_py", "markdown_it", "mdurl", "jaxlib")
    for entry in Path(pytest.__file__).parents[1].iterdir():
        if entry.name.lower().split("-")[0] in names:
            (shown / entry.name).symlink_to(entry)
    (shown / "setup_aot.py").symlink_to(ROOT / "jzero" / "audit" / "setup_aot.py")
    done = subprocess.run(
        [tmp_path / "bare" / "bin" / "python", shown / "setup_aot.py", "--quiet"],
        env={"PYTHONPATH": str(shown)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert "No module named pip" in done.stderr
    assert "-m pip install --no-deps -q jax-cuda13-plugin==" in done.stderr


@pytest.mark.skipif(
    bool(missing_wheels()),
    reason="would install 700 MB: python -m jzero.audit.setup_aot does so",
)
def test_does_nothing_where_all_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    assert "all 4 wheels are installed" in capsys.readouterr().out
    assert setup(True) == 0
    assert capsys.readouterr().out == ""
