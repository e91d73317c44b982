from __future__ import annotations

import warnings
from typing import get_args

import pytest

import jzero
from jzero.audit.findings.finding import KINDS, Finding, FindingKind, announce

LOST = Finding(
    kind="donation-lost",
    where="state['total']",
    num_bytes=32_768,
    detail="32,768 bytes are held twice",
    remedy="make the new leaf of the old one",
)
WIDE = Finding(
    kind="wide-gather",
    where="state['w']",
    num_bytes=100,
    detail="f32 is gathered",
    remedy="cast first",
)


def test_every_kind_is_explained() -> None:
    assert set(KINDS) == set(get_args(FindingKind))
    assert all(len(text.split()) > 4 for text in KINDS.values())


def test_a_finding_in_one_line() -> None:
    assert str(LOST) == (
        "donation-lost  state['total']  32,768 bytes are held twice. "
        "make the new leaf of the old one"
    )


def test_ignoring_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        announce([LOST], "ignore", name="step")
        announce([], "warn", name="step")
        announce([], "raise", name="step")


def test_one_warning_names_all_of_them() -> None:
    with pytest.warns(jzero.FindingWarning) as caught:
        announce([LOST, WIDE], "warn", name="my_step")
    (warning,) = caught
    text = str(warning.message)
    for word in ("my_step", "2 things", "donation-lost", "state['total']", "32,768"):
        assert word in text
    for word in ("wide-gather", "cast first", "on_finding", ".report()"):
        assert word in text


def test_the_error_names_them_too() -> None:
    with pytest.raises(jzero.FindingError, match=r"donation-lost: state\['total'\]"):
        announce([LOST], "raise", name="step")


def test_one_is_not_spoken_of_as_many() -> None:
    with pytest.raises(jzero.FindingError, match="does 1 thing that"):
        announce([LOST], "raise", name="step")
