"""Two processes, started by the example itself over loopback."""

from __future__ import annotations

import re

from tests.examples.run import run_example


def test_processes_end_with_the_same_numbers() -> None:
    result = run_example("multihost", "--steps", "6")
    assert result.returncode == 0, result.stderr
    found = re.findall(r"4 of 8 devices: loss (\S+), .weights. (\S+)", result.stdout)
    assert len(found) == 2
    assert found[0] == found[1]
    first = re.search(r"step +0 +loss (\S+)", result.stdout)
    assert first is not None and float(found[0][0]) < float(first[1])


def test_a_failing_process_stops_the_others_and_is_named() -> None:
    result = run_example(
        "multihost", "--steps", "4", "--fail-at", "2", timeout_seconds=200
    )
    assert result.returncode == 1
    assert "failing on purpose at step 2" in result.stderr
    # The other process may notice the broken connection, and end, first.
    ended = r"process [01] ended with status 1; still running and stopped: "
    assert re.search(ended, result.stderr)
