"""Devices that are not there, and what they want installed and set."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from jzero.audit.devices import PodError, PodNameError, gpu_devices, tpu_devices
from tests.needs import needs_compiler, needs_libtpu

ROOT = Path(__file__).resolve().parents[3]

without_driver = pytest.mark.skipif(
    Path("/proc/driver/nvidia/version").exists(),
    reason="with an NVIDIA driver JAX does not refuse the plugin",
)


@pytest.mark.parametrize("topology", ["8", "8x8", "1x0x8", "axbxc"])
def test_unknown_topologies(topology: str) -> None:
    with pytest.raises(PodError, match="slices x hosts x GPUs per host"):
        gpu_devices(topology)


@pytest.mark.parametrize("topology", ["8", "4x4x4x4", "2x0", "2x-2", "axb"])
def test_unknown_slices(topology: str) -> None:
    with pytest.raises(PodNameError, match="sides of a slice"):
        tpu_devices(topology)


@pytest.mark.parametrize("chip", ["x9", "v5e"])
def test_unknown_gpu(chip: str) -> None:
    with pytest.raises(PodNameError, match=f"(?s)Unknown chip '{chip}'.*a100-40, a100"):
        gpu_devices("1x1x8", chip=chip)


def test_unknown_tpu() -> None:
    with pytest.raises(PodNameError, match="known are v5e, v5p, v6e"):
        tpu_devices("2x2", chip="h100")


def run_python(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    hidden = ["JAX_PLATFORMS", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "XLA_FLAGS"]
    if "-S" in flags:  # such a process is to see no packages but those it is shown
        hidden.append("PYTHONPATH")
    env = {key: value for key, value in os.environ.items() if key not in hidden}
    return subprocess.run(
        [sys.executable, *flags, "-c", code],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@needs_compiler
@without_driver
def test_fresh_process_needs_no_settings() -> None:
    done = run_python(
        "import os\n"
        "from jzero.audit.devices import gpu_devices\n"
        "print(len(gpu_devices('1x2x8')), dict(os.environ).get("
        "'JAX_SKIP_CUDA_CONSTRAINTS_CHECK'))"
    )
    assert done.stdout.split() == ["16", "None"], done.stderr


@needs_compiler
@without_driver
def test_plugin_refused_before_says_what_to_set() -> None:
    done = run_python(
        "import jax\n"
        "from jzero.audit.devices import PodError, gpu_devices\n"
        "jax.devices()\n"
        "try: gpu_devices('1x1x8')\n"
        "except PodError as error: print(error)"
    )
    assert "set JAX_PLATFORMS=cpu" in done.stdout, done.stderr


def test_missing_wheels_are_named_with_the_command(tmp_path: Path) -> None:
    # The installed packages but for the plugin, as links.
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("jax_cuda", "jax_plugins")):
            (tmp_path / entry.name).symlink_to(entry)
    done = run_python(
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\n"
        "from jzero.audit.devices import PodError, gpu_devices\n"
        "try: gpu_devices('1x1x8')\n"
        "except PodError as error: print(error)",
        "-S",
    )
    assert "-m pip install --no-deps" in done.stdout, done.stderr
    assert "jax-cuda13-plugin==" in done.stdout
    assert "jax-cuda13-pjrt==" in done.stdout
    assert "jzero aot-setup)" in done.stdout


def test_missing_libtpu_is_named_with_the_command(tmp_path: Path) -> None:
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith("libtpu"):
            (tmp_path / entry.name).symlink_to(entry)
    done = run_python(
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\n"
        "from jzero.audit.devices import PodError, tpu_devices\n"
        "try: tpu_devices('2x2')\n"
        "except PodError as error: print(error)",
        "-S",
    )
    assert "-m pip install --no-deps 'libtpu==0.0." in done.stdout, done.stderr
    assert "jzero aot-setup --tpu" in done.stdout


@needs_libtpu
def test_tpus_in_a_fresh_process_change_no_settings() -> None:
    done = run_python(
        "import jax, os\n"
        "from jzero.audit.devices import tpu_devices\n"
        "before = dict(os.environ)\n"
        "devices = tpu_devices('2x2x2', chip='v5p')\n"
        "print(len(devices), dict(os.environ) == before)\n"
        "print(*(m.kind for m in devices[0].addressable_memories()))"
    )
    assert done.stdout.split("\n")[0] == "8 True", done.stderr
    assert "pinned_host" in done.stdout


@needs_libtpu
def test_what_libtpu_refuses_is_said() -> None:
    with pytest.raises(PodError, match=r"(?s)does not describe v5e:3x3.*Remedy"):
        tpu_devices("3x3", chip="v5e")
