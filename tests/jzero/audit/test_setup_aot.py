from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from jzero.audit.setup_aot import (
    install_command,
    main,
    missing_wheels,
    required_wheels,
)


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


def test_command_leaves_dependencies_out() -> None:
    command = install_command(["a==1"])
    assert command == (sys.executable, "-m", "pip", "install", "--no-deps", "a==1")


@pytest.mark.skipif(
    bool(missing_wheels()),
    reason="would install 700 MB: python -m jzero.audit.setup_aot does so",
)
def test_does_nothing_where_all_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    assert "all four wheels are installed" in capsys.readouterr().out
