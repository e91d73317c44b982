"""Checks of the values that settings are given.

Lives here: reading sizes, and the errors of values of the wrong kind. May import:
`errors`. Read next: `config.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import SupportsIndex, cast

from jzero.errors import ConfigError, format_problem

__all__ = [
    "MIB",
    "check_choice",
    "check_count",
    "check_flag",
    "check_texts",
    "parse_bytes",
    "wrong_value",
]

MIB = 2**20
_UNITS: Mapping[str, int] = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}


def parse_bytes(value: object, name: str = "size", *, of: str = "ZeroConfig") -> int:
    """Returns a size in bytes from an int or a text such as "64MB" or "16MiB".

    Raises:
        ConfigError: The size is negative, not whole, or not readable.

    Example:
        >>> parse_bytes("1.5MiB")
        1572864
    """
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", value.lower())
        unit_bytes = None if match is None else _UNITS.get(match[2] or "b")
        if match is None or unit_bytes is None:
            wanted = 'an int, or a text such as "64MB" or "16MiB"'
            raise wrong_value(name, value, wanted, of=of)
        num_bytes = Fraction(match[1]) * unit_bytes
        if num_bytes.denominator != 1:
            raise wrong_value(name, value, "a whole number of bytes", of=of)
        return int(num_bytes)
    return check_count(value, name, of=of)


def wrong_value(
    name: str, value: object, wanted: str, *, of: str = "ZeroConfig"
) -> ConfigError:
    """Returns the error of a setting whose value is of the wrong kind."""
    return ConfigError(
        format_problem(f"{of}({name}={value!r}) is not valid.", (), f"pass {wanted}.")
    )


def check_texts(
    value: object, name: str, wanted: str, *, of: str = "ZeroConfig"
) -> tuple[str, ...]:
    """Returns one text or several as a tuple."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise wrong_value(name, value, wanted, of=of)
    texts: list[str] = []
    for entry in cast(Iterable[object], value):
        if not isinstance(entry, str):
            raise wrong_value(name, cast(object, value), wanted, of=of)
        texts.append(entry)
    return tuple(texts)


def check_count(value: object, name: str, *, of: str = "ZeroConfig") -> int:
    """Returns a whole number, 0 or more."""
    wanted = "a whole number, 0 or more"
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise wrong_value(name, value, wanted, of=of)
    number = value.__index__()
    if number < 0:
        raise wrong_value(name, value, wanted, of=of)
    return number


def check_flag(value: object, name: str) -> bool:
    """Returns True or False, and takes nothing else for either."""
    if not isinstance(value, bool):
        raise wrong_value(name, value, "True or False")
    return value


def check_choice(
    value: object, choices: tuple[str, ...], name: str, *, of: str = "ZeroConfig"
) -> str:
    """Returns one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise wrong_value(name, value, f"one of {', '.join(map(repr, choices))}", of=of)
    return value
