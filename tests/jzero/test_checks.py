"""Checks of settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jzero.checks import (
    check_choice,
    check_count,
    check_flag,
    check_texts,
    parse_bytes,
)
from jzero.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("64MB", 64_000_000),
        ("16MiB", 2**24),
        ("16 mib", 2**24),
        ("1.5KiB", 1536),
        ("2GB", 2 * 10**9),
        ("0", 0),
        ("100", 100),
        ("7B", 7),
        (5, 5),
        (np.int64(5), 5),
        ("0.1MB", 100_000),
    ],
)
def test_sizes(text: object, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes
    assert type(parse_bytes(text)) is int


def test_good_values_come_back() -> None:
    assert check_count(3, "n") == 3
    assert check_flag(False, "f") is False
    assert check_choice("a", ("a", "b"), "c") == "a"
    assert check_texts("a", "t", "names") == ("a",)
    assert check_texts(["a", "b"], "t", "names") == ("a", "b")


@pytest.mark.parametrize(
    "check",
    [
        lambda: parse_bytes("1.5B", "x", of="Thing"),
        lambda: parse_bytes("much", "x", of="Thing"),
        lambda: check_count(-1, "x", of="Thing"),
        lambda: check_choice("z", ("a",), "x", of="Thing"),
        lambda: check_texts([1], "x", "names", of="Thing"),
        lambda: check_texts(1, "x", "names", of="Thing"),
    ],
)
def test_wrong_values_name_their_setting(check: Any) -> None:
    with pytest.raises(ConfigError, match=r"Thing\(x="):
        check()


def test_a_number_is_no_flag() -> None:
    with pytest.raises(ConfigError, match="True or False"):
        check_flag(1, "f")
