"""The prepared script for a GPU, without one."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

import pytest

from benchmarks import gpu_checks, gpu_kernels, gpu_worker
from benchmarks.gpu_times import COPY, PAIRS, Timing

ALL = Namespace(dry_run=True, checks=False, elements=4096, seed=3, only="")


def test_a_dry_run_in_a_process_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    wanted = "copy|quantize 4|to 4 bits|^Lion$"
    assert gpu_kernels.main(["--dry-run", "--only", wanted, "--seed", "3"]) == 0
    printed = capfd.readouterr().out
    assert "Lion: largest error" in printed
    assert "quantize to 4 bits: largest error" in printed
    for name in ("quantize 4", "dequantize 4"):
        assert f"| {name}, XLA |" in printed
        assert f"| {name}, kernel |" in printed
        assert f"{name}: the kernel takes" in printed
    assert printed.rstrip().endswith("failed: nothing")


def test_references_come_first_and_each_kernel_has_its_own() -> None:
    names = [name for name, _ in gpu_worker.items(ALL, is_gpu=False)]
    assert names[0] == COPY
    assert len(set(names)) == len(names)
    for name in PAIRS:
        assert names.index(f"{name}, XLA") < names.index("AdamW")
        assert names.index(f"{name}, kernel") > names.index("stochastic rounding")


def test_a_wrong_kernel_is_named_and_the_rest_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expected numbers that are a thousandth off stand for kernels that are."""
    right = gpu_checks._expected

    def wrong(*args: Any) -> Any:
        param, moments = right(*args)
        return param * (1 + 1e-3), moments

    monkeypatch.setattr(gpu_checks, "_expected", wrong)
    options = Namespace(**{**vars(ALL), "checks": True, "only": "Lion$|stochastic"})
    assert gpu_worker.work(options, ["AdamW"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (bad,) = [r for r in records if "error" in r]
    assert bad["name"] == "Lion"
    assert "parameters wrong" in bad["error"]
    assert any(r.get("name") == "stochastic rounding" for r in records)


def test_what_is_lost_with_its_process_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = gpu_kernels.Results()
    for record in (
        {"device": "a card"},
        {"start": "copy"},
        {"name": "copy", "seconds": 0.5, "num_bytes": 1e9},
        {"start": "bad"},
    ):
        results.take(record)
    results.lose("the process ended with status -6")
    assert results.attempted == ["copy", "bad"]
    assert results.failed == ["bad"]
    assert results.timings[0].gb_per_second == 2.0
    assert "bad: FAILED, the process ended" in capsys.readouterr().out
    assert not results.is_done
    results.take({"end": True})
    assert results.is_done


def test_a_process_that_does_not_answer_is_given_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_kernels, "ITEM_SECONDS", 0.0)
    assert gpu_kernels.main(["--dry-run"]) == 1
    assert "was not run" in capsys.readouterr().out


def test_without_a_gpu_nothing_is_timed_unasked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = Namespace(**{**vars(ALL), "dry_run": False})
    assert gpu_worker.work(options, []) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "--dry-run" in last["error"]


def test_nothing_starts_when_time_is_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_kernels.main(["--dry-run", "--budget", "-1"]) == 1
    assert "was not run" in capsys.readouterr().out


def test_the_verdict() -> None:
    seconds = {COPY: 1.0, "AdamW, optax": 3.0, "AdamW, XLA": 4.0, "AdamW, kernel": 2.0}
    rows = [Timing(name=n, seconds=s, num_bytes=1e9) for n, s in seconds.items()]
    table = gpu_kernels.render(rows, "a card")
    assert "| AdamW, kernel | 2000.000 | 0 | 50 % |" in table
    mixed = gpu_kernels.render([rows[3], rows[1], rows[0]], "a card")
    assert mixed.index(COPY) < mixed.index("| AdamW, kernel")
    assert "AdamW: the kernel takes 0.67 of XLA's time: it pays" in table
    rows[-1] = Timing(name="AdamW, kernel", seconds=3.5, num_bytes=1e9)
    assert "no faster; the reference stays" in gpu_kernels.render(rows, "a card")
    assert "%" not in gpu_kernels.render(rows[1:], "no copy")
