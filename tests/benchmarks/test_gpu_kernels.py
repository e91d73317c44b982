"""The prepared script for a GPU: its checks, without one."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from benchmarks import gpu_kernels
from pallas_kernels.compat import has_mosaic_gpu


@pytest.mark.skipif(not has_mosaic_gpu(), reason="kernels need JAX 0.12")
def test_its_checks_pass_by_the_interpreter(capsys: pytest.CaptureFixture[str]) -> None:
    gpu_kernels.main(["--checks", "--seed", "3"])
    printed = capsys.readouterr().out
    assert "AdamW 8-bit: largest error" in printed
    assert "not timed: as asked" in printed


def test_a_wrong_kernel_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gpu_kernels._float64
    monkeypatch.setattr(
        gpu_kernels, "_float64", lambda *args: right(*args) * np.float64(1 + 1e-3)
    )
    with pytest.raises(AssertionError, match="AdamW float32"):
        gpu_kernels.check_all("xla", (8, 256), 0)


def test_times_and_the_verdict() -> None:
    timings = gpu_kernels.time_all(2**14, "xla")
    names = [t.name for t in timings]
    assert names[:3] == ["device copy", "AdamW float32, XLA", "AdamW float32, kernel"]
    table = gpu_kernels.render(timings, jax.devices()[0].device_kind)
    assert table.count("\n| ") == 1 + len(timings)
    slower = [
        gpu_kernels.Timing(name=t.name, seconds=1.0 + i, num_bytes=1.0)
        for i, t in enumerate(timings)
    ]
    assert "no faster; the reference stays" in gpu_kernels.render(slower, "none")
