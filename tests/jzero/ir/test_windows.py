"""A bound on the bytes that wait."""

from __future__ import annotations

from jzero.ir.windows import Window


def test_all_come_in_while_there_is_room() -> None:
    window = Window(100)
    for name in "abc":
        assert window.guards(30) == []
        window.add(30, [name])
    assert window.guards(10) == []


def test_the_next_waits_for_the_last_that_has_to_be_gone() -> None:
    window = Window(100)
    for name in "abc":
        window.add(30, [name])
    assert window.guards(20) == ["a"]
    assert window.guards(50) == ["b"]
    assert window.guards(1000) == ["c"]


def test_one_at_a_time() -> None:
    window = Window(1)
    assert window.guards(50) == []
    window.add(50, ["a", "b"])
    assert window.guards(50) == ["a", "b"]
