"""Which wheels are needed, and which of them are there."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import requires, version
from pathlib import Path

import pytest

from jzero.audit.wheels import install_command, missing_wheels, required_wheels

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
