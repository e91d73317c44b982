"""`Offload`: every value is checked, and no value is without effect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jzero import Offload, ZeroConfig
from jzero.errors import ConfigError


def test_what_the_documents_show() -> None:
    given = Offload(optimizer="host", params="host", ratio=0.6, window="512MB")
    assert given.window_bytes == 512_000_000
    assert given.is_on
    assert hash(given) == hash(replace(given))
    assert replace(given, ratio=1.0).window_bytes == 512_000_000


def test_nothing_on_the_host_is_no_offload() -> None:
    assert not Offload().is_on
    assert ZeroConfig(offload=Offload()) == ZeroConfig()
    assert ZeroConfig(offload=Offload(optimizer="host")) != ZeroConfig()


WRONG: list[dict[str, Any]] = [
    {"optimizer": "cpu"},
    {"params": True},
    {"optimizer": "host", "ratio": 0},
    {"optimizer": "host", "ratio": 1.5},
    {"optimizer": "host", "ratio": True},
    {"optimizer": "host", "ratio": "most"},
    {"optimizer": "host", "ratio": float("nan")},
    {"optimizer": "host", "window": 0},
    {"optimizer": "host", "window": "half"},
    {"optimizer": "host", "compute": "gpu"},
    {"optimizer": "host", "compute": "host", "compiler": "gcc"},
    {"optimizer": "host", "compiler": "llvm"},
    {"optimizer": "host", "device_bytes": "80GB"},
    {"optimizer": "host", "ratio": "auto"},
    {"ratio": 0.5},
    {"compute": "host"},
]


@pytest.mark.parametrize("given", WRONG, ids=str)
def test_wrong_values_say_what_to_pass(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"Offload\((.|\n)*Remedy: "):
        Offload(**given)


def test_its_pass_cannot_be_left_out() -> None:
    with pytest.raises(ConfigError, match="leave offload out"):
        ZeroConfig(offload=Offload(params="host"), disable_passes=("offload",))


def test_a_config_takes_nothing_else() -> None:
    with pytest.raises(ConfigError, match="offload='host'"):
        ZeroConfig(offload="host")  # type: ignore[arg-type]
