"""The settings: what is accepted, what it becomes, what is refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from jzero.config import PASS_NAMES, ZeroConfig
from jzero.errors import ConfigError


def test_defaults_are_valid_and_small_leaves_persist() -> None:
    config = ZeroConfig()
    assert config.axes == config.batch_axes == ("data",)
    assert config.persistence_threshold > 0
    assert config.gather_dtype == "compute"
    assert not config.replicate_params
    assert config.params is None and config.disable_passes == ()


def test_every_spelling_of_the_axes() -> None:
    assert ZeroConfig(axis="zero").axes == ("zero",)
    assert ZeroConfig(axis=["a", "b"]).axes == ("a", "b")
    config = ZeroConfig(axis=("a", "b"), batch_axis="rows")
    assert config.axes == ("a", "b") and config.batch_axes == ("rows",)
    assert ZeroConfig(batch_axis=("x", "y")).batch_axes == ("x", "y")


def test_equal_settings_are_equal_and_hash_equal() -> None:
    one = ZeroConfig(
        axis=["data"],
        reduce_window_bytes="8MiB",
        compiler_options={"b": 1, "a": True},
        params=["w", "b"],
        disable_passes=["window", "gather_at_use"],
    )
    two = ZeroConfig(
        axis="data",
        reduce_window_bytes=8 * 2**20,
        compiler_options=(("a", True), ("b", 1)),
        params=("w", "b"),
        disable_passes=("gather_at_use", "window"),
    )
    assert one == two and hash(one) == hash(two)
    assert one != replace(two, replicate_params=True)


def test_frozen_keyword_only_and_closed() -> None:
    config: Any = ZeroConfig()
    with pytest.raises(FrozenInstanceError):
        config.axis = "x"
    with pytest.raises(TypeError):
        ZeroConfig("data")  # type: ignore[misc]
    with pytest.raises(TypeError, match="percistence"):
        ZeroConfig(percistence=3)  # type: ignore[call-arg]


def test_replace_validates_again() -> None:
    assert replace(ZeroConfig(), axis="x").axes == ("x",)
    with pytest.raises(ConfigError):
        replace(ZeroConfig(), persistence_threshold=-1)


def test_findings_are_warned_of_unless_said_otherwise() -> None:
    assert ZeroConfig().on_finding == "warn"
    assert ZeroConfig(on_finding="raise").on_finding == "raise"
    assert ZeroConfig(on_finding="ignore") != ZeroConfig()


def test_kernels_are_left_to_the_optimizers_unless_named() -> None:
    assert ZeroConfig().kernels is None
    for name in ("auto", "xla", "mosaic_gpu", "pallas_tpu"):
        assert ZeroConfig(kernels=name).kernels == name


WRONG: list[dict[str, Any]] = [
    {"axis": ""},
    {"axis": ()},
    {"axis": ("a", "a")},
    {"axis": 3},
    {"axis": None},
    {"axis": ("a", 3)},
    {"batch_axis": ()},
    {"persistence_threshold": -1},
    {"persistence_threshold": True},
    {"persistence_threshold": 1.5},
    {"persistence_threshold": float("nan")},
    {"persistence_threshold": "10"},
    {"gather_dtype": "float32"},
    {"gather_dtype": None},
    {"replicate_params": 1},
    {"params": 3},
    {"params": ()},
    {"params": (3,)},
    {"params": str},
    {"params": "[unclosed"},
    {"compiler_options": "xla_flag"},
    {"compiler_options": ""},
    {"compiler_options": 0},
    {"compiler_options": {"a": None}},
    {"compiler_options": {1: True}},
    {"compiler_options": [1, 2]},
    {"disable_passes": "window"},
    {"disable_passes": ("unknown",)},
    {"disable_passes": 3},
    {"kernels": "cuda"},
    {"kernels": True},
    {"on_finding": "error"},
    {"on_finding": None},
    {"on_finding": True},
]
SIZES = [f.name for f in fields(ZeroConfig) if f.name.endswith("_bytes")]
WRONG += [
    {name: value}
    for name in SIZES
    for value in (-1, True, 1.5, None, "many", "3XB", "1.0001KiB", "-4MB", float("nan"))
]


@pytest.mark.parametrize("setting", WRONG, ids=repr)
def test_wrong_values_name_the_setting(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(ConfigError) as caught:
        ZeroConfig(**setting)
    assert name in str(caught.value)
    assert "Remedy:" in str(caught.value)


def test_there_are_sizes_to_check() -> None:
    assert {"reduce_window_bytes", "reuse_window_bytes"} <= set(SIZES)


@pytest.mark.parametrize("name", PASS_NAMES)
def test_each_pass_can_be_named(name: str) -> None:
    assert ZeroConfig(disable_passes=(name,)).disable_passes == (name,)


def test_every_setting_is_documented() -> None:
    for field in fields(ZeroConfig):
        assert f"{field.name}:" in (ZeroConfig.__doc__ or "")
