"""Alone there is nobody to wait for; tests/multiprocess has company."""

from __future__ import annotations

import pytest

from jzero.checkpoint.processes import Meeting


@pytest.mark.parametrize("number", (None, 0, 7))
def test_one_process_agrees_with_itself(number: int | None) -> None:
    meeting = Meeting("alone", 1.0)
    meeting.wait("save(1)")
    assert meeting.agree(number, "restore()") == number
