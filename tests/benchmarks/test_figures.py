from __future__ import annotations

import pytest

from benchmarks.figures import main
from tests.needs import needs_compiler


@needs_compiler
def test_command_prints_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--pod", "h100:1x8", "--layers", "1", "--width", "128", "--tokens", "64"]
    status = main([*small, "--stage", "0", "--annotations", "--details", "2"])
    printed = capsys.readouterr().out
    assert status == 0
    assert "all-reduce of bf16[" in printed
    assert "1.00" in printed and "resident MB" in printed
