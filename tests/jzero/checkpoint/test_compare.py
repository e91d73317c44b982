"""Every leaf that does not fit is found, in one go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import jzero
from jzero.checkpoint.compare import compare, make_filter, raise_mismatch
from jzero.checkpoint.manifest import SavedLeaf
from tests.jzero.checkpoint.test_manifest import MANIFEST


def leaf(path: str, **more: object) -> SavedLeaf:
    fields: dict[str, Any] = {"shape": (4,), "dtype": "float32", **more}
    return SavedLeaf(path=path, keys=tuple(path.split("/")), **fields)


STATE = (
    leaf("params/w", role="parameter"),
    leaf("params/b", role="parameter"),
    leaf("opt/mu", role="optimizer"),
    leaf("opt/count", shape=(), dtype="int32"),
    leaf("key", shape=(), dtype="key<fry>", key_impl="fry"),
    leaf("stats/mean"),
)
SAVED = replace(MANIFEST, leaves=STATE, aliases={})


@pytest.mark.parametrize(
    ("what", "paths"),
    [
        ("all", {x.path for x in STATE}),
        ("params", {"params/w", "params/b"}),
        ("optimizer", {"opt/mu", "opt/count"}),
        (lambda path: path.startswith("stats"), {"stats/mean"}),
    ],
)
def test_parts(what, paths) -> None:
    is_in = make_filter(STATE, what)
    assert {x.path for x in STATE if is_in(x.path)} == paths
    report = compare(SAVED, STATE, what=what)
    assert report.fits and set(report.restored) == paths


def test_optimizer_leaves_beside_parameters_go_by_their_role() -> None:
    mixed = (leaf("0/w", role="parameter"), leaf("0/mu", role="optimizer"), leaf("0/n"))
    is_in = make_filter(mixed, "optimizer")
    assert [x.path for x in mixed if is_in(x.path)] == ["0/mu"]


def test_all_that_differs_is_listed_at_once() -> None:
    wanted = (
        replace(STATE[0], shape=(5,)),
        replace(STATE[1], dtype="float16"),
        leaf("opt/nu", role="optimizer"),
        *STATE[3:5],
    )
    report = compare(SAVED, wanted)
    assert report.reshaped == (("params/w", "(4,) -> (5,)"),)
    assert report.retyped == (("params/b", "float32 -> float16"),)
    assert report.missing == ("opt/nu",)
    assert report.unexpected == ("opt/mu", "stats/mean")
    assert report.restored == ("opt/count", "key")
    with pytest.raises(jzero.MismatchError) as error:
        raise_mismatch(report, "runs/a/3")
    text = str(error.value)
    assert "5 do not fit" in text and "runs/a/3" in text
    for path, _ in report.rows:
        assert path in text


def test_a_cast_is_made_when_asked_for_and_never_of_keys() -> None:
    wanted = (
        replace(STATE[1], dtype="float16"),
        leaf("key", shape=(), dtype="uint32"),
    )
    report = compare(SAVED, wanted, cast=True, what=lambda p: p in ("params/b", "key"))
    assert report.cast == (("params/b", "float32 -> float16"),)
    assert report.restored == ("params/b",)
    assert report.retyped == (("key", "key<fry> -> uint32"),)
    with pytest.raises(jzero.MismatchError) as error:
        raise_mismatch(report, "here")
    assert "cast=True" not in str(error.value)


def test_what_fits_raises_nothing() -> None:
    report = compare(SAVED, STATE)
    raise_mismatch(report, "here")
    assert "6 leaves restored" in str(report)
