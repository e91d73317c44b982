"""What names on a path say, without regard to structure."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax
import pytest

from jzero.plan.names import read_names, read_state_names, words
from tests.jzero.plan.states import describe

W = jnp.ones((4, 4))


def _meaning(arg_name: str, tree: Any) -> str:
    (leaf,) = describe(**{arg_name: tree})
    return read_names(leaf, arg_name).meaning


@pytest.mark.parametrize(
    ("arg_name", "tree", "meaning"),
    [
        ("params", {"w": W}, "params"),
        ("params", {"opt": {"w": W}}, "params"),
        ("params", {"batch_stats": {"w": W}}, "stats"),
        ("params", {"stats": {"w": W}}, "params"),
        ("state", {"params": {"mu": {"w": W}}}, "params"),
        ("state", {"gen_params": {"w": W}}, "params"),
        ("state", {"hyper_params": {"w": W}}, "unknown"),
        ("model", {"layer": {"w": W}}, "params"),
        ("model", {"opt_state": {"w": W}}, "optimizer"),
        ("variables", {"batch_stats": {"w": W}}, "stats"),
        ("state", {"batch_stats": {"w": W}}, "stats"),
        ("opt_state", {"w": W}, "optimizer"),
        ("optimizer", {"model": {"w": W}}, "params"),
        ("velocity", {"w": W}, "optimizer"),
        ("s", optax.TraceState(trace={"params": {"w": W}}), "optimizer"),
        ("s", {"trace": {"w": W}}, "unknown"),
        ("ema", {"w": W}, "copy"),
        ("state", {"target_params": {"w": W}}, "copy"),
        ("state", {"layer": {"slow": W}}, "unknown"),
        ("w", W, "unknown"),
    ],
    ids=repr,
)
def test_first_telling_name_decides(arg_name: str, tree: Any, meaning: str) -> None:
    assert _meaning(arg_name, tree) == meaning


def test_endings_reach_the_container_and_what_it_holds() -> None:
    (leaf,) = describe(state={"params": {"params": {"w": W}}})
    hint = read_names(leaf, "state")
    assert set(hint.tails(leaf)) == {
        ("params", "params", "w"),
        ("params", "w"),
        ("w",),
    }


def test_fields_of_one_record_go_together() -> None:
    params = {"w": W}
    state = optax.contrib.schedule_free_adamw(1e-3).init(params)
    leaves = describe(p=params, s=(optax.EmptyState(), state))
    hints = read_state_names(leaves, ("p", "s"))
    by_path = {leaf.path: h.meaning for leaf, h in zip(leaves, hints, strict=True)}
    assert by_path["s[1].z['w']"] == "optimizer"
    assert by_path["p['w']"] == "unknown"


def test_words() -> None:
    assert words("Gen-Opt_2") == {"gen", "opt", "2"}
