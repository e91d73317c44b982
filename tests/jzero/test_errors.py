"""The error types and the one formatter of their texts."""

from __future__ import annotations

import inspect

import pytest

from jzero import errors
from jzero.errors import JzeroError, format_problem

BUILTINS = {
    "ConfigError": ValueError,
    "StageError": ValueError,
    "MeshError": ValueError,
    "StateError": TypeError,
    "ParamsError": TypeError,
    "BatchError": ValueError,
    "PlacementError": ValueError,
    "DonationError": RuntimeError,
    "AliasError": ValueError,
    "CheckpointError": RuntimeError,
    "MismatchError": ValueError,
    "FindingError": RuntimeError,
    "HostMemoryError": ValueError,
    "InternalError": RuntimeError,
    "LossScaleError": ArithmeticError,
}


def test_the_table_above_is_complete() -> None:
    found = {
        name
        for name, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, JzeroError) and value is not JzeroError
    }
    assert found == set(BUILTINS)
    assert set(errors.__all__) == {
        *BUILTINS,
        "CheckpointWarning",
        "FindingWarning",
        "JzeroError",
        "format_problem",
    }


@pytest.mark.parametrize("name", BUILTINS)
def test_each_error_is_a_builtin_too(name: str) -> None:
    error = getattr(errors, name)
    with pytest.raises(BUILTINS[name], match="text"):
        raise error("text")
    assert issubclass(error, JzeroError)


def test_rows_are_aligned_and_the_remedy_comes_last() -> None:
    text = format_problem(
        "2 leaves do not divide:",
        [("state['w']", "(7,)"), ("b", "(3, 5)")],
        "pad them.",
    )
    assert text.splitlines() == [
        "2 leaves do not divide:",
        "  state['w']  (7,)",
        "  b           (3, 5)",
        "Remedy: pad them.",
    ]


def test_ready_lines_stay_as_they_are() -> None:
    assert format_problem("Wrong:", ["a", "b c"]) == "Wrong:\n  a\n  b c"
    assert format_problem("Wrong.") == "Wrong."


def test_every_row_is_listed_unless_a_cap_is_asked_for() -> None:
    rows = [(f"leaf{i}", "bad") for i in range(300)]
    assert format_problem("x", rows).count("bad") == 300
    capped = format_problem("x", iter(rows), max_rows=2)
    assert capped.splitlines() == [
        "x",
        "  leaf0  bad",
        "  leaf1  bad",
        "  ... and 298 more",
    ]
