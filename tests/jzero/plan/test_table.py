"""How a plan is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich.console import Console

from jzero.config import ZeroConfig
from jzero.plan.batch import BatchFacts, plan_batch
from jzero.plan.plan import Plan
from jzero.plan.table import format_bytes
from tests.jzero.plan.states import plan_of


@pytest.fixture
def plan() -> Plan:
    params = {"w": jnp.ones((512, 1024)), "odd": jnp.ones((7, 3))}
    opt_state = jax.eval_shape(optax.adam(1e-3).init, params)
    batch = plan_batch(
        [
            BatchFacts(path="x", arg=2, shape=(16, 3), dtype=np.dtype("f4")),
            BatchFacts(path="lr", arg=3, shape=(), dtype=np.dtype("f4")),
        ],
        axis_sizes={"data": 8},
        batch_axes=("data",),
    )
    made = plan_of(3, params=params, opt_state=opt_state)
    return replace(made, batch=batch, notes=("State: params, opt_state.",))


def _row(text: str, start: str) -> str:
    (line,) = [line for line in text.splitlines() if line.strip().startswith(start)]
    return " ".join(line.split())


def test_text_tells_everything(plan: Plan) -> None:
    text = str(plan)
    assert text.startswith("ZeRO stage 3 on a mesh of data=8: state over data")
    assert _row(text, "params['w']") == (
        "params['w'] parameter 512x1024 float32 P('data') device 256.00 KiB "
        "dim 0 of 512 over data=8"
    )
    assert _row(text, "opt_state[0].mu['w']").endswith("as its parameter")
    assert _row(text, "opt_state[0].count").startswith(
        "opt_state[0].count other scalar int32 P() device 4 B"
    )
    assert _row(text, "parameter") == "parameter 2 2.00 MiB 256.08 KiB"
    assert _row(text, "all ") == "all 7 6.00 MiB 768.25 KiB"
    assert (
        "Not split over data although of 0 elements or more: 3 leaves, 252 B per device"
    ) in text
    assert "params['odd']  84 B: no dim of (7, 3) divides by data=8" in text
    assert _row(text, "x ") == "x 16x3 float32 P('data') dim 0 of 16 over data=8"
    assert _row(text, "lr ").endswith("a scalar")
    assert text.splitlines()[-1] == "State: params, opt_state."


def test_text_is_plain_whatever_the_terminal(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = str(plan)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert str(plan) == before
    assert "\x1b" not in before
    assert all(line == line.rstrip() for line in before.splitlines())
    assert max(map(len, before.splitlines())) <= 160


def test_long_paths_fold_and_numbers_do_not() -> None:
    tree: object = {"kernel": jnp.ones((512, 1024))}
    for depth in range(12):
        tree = {f"a_rather_long_layer_name_{depth}": tree}
    made = plan_of(3, params=tree)
    text = str(made)
    assert max(map(len, text.splitlines())) <= 160
    assert "256.00 KiB" in text and "512x1024" in text
    # Folded, and all there: the first column put together is the path.
    lines = text.split("Totals")[0].splitlines()
    num_chars = next(line.index("role") for line in lines if "role" in line)
    column = [line[:num_chars].strip() for line in lines[5:]]
    assert len(column) > 3
    assert "".join(column) == made.state[0].path


def test_reasons_fold_before_paths() -> None:
    params = {"a" * 20: {"b" * 20: jnp.ones((7, 11, 13, 17))}}
    opt_state = jax.eval_shape(optax.adam(1e-3).init, params)
    text = str(plan_of(3, params=params, opt_state=opt_state))
    moment = f"opt_state[0].mu['{'a' * 20}']['{'b' * 20}']"
    (row,) = [line for line in text.splitlines() if "mu" in line and "float32" in line]
    assert row.split()[0] == moment
    reason = "no dim of (7, 11, 13, 17) divides by data=8"
    assert reason not in text.split("Totals")[0] and reason in text


def test_brackets_are_not_markup() -> None:
    text = str(plan_of(3, params={"red": {"bold": jnp.ones((8, 8))}, "[bold]": 1.0}))
    assert "params['red']['bold']" in text
    assert "params['[bold]']" in text


def test_rich_shows_it_in_colour(plan: Plan) -> None:
    out = StringIO()
    Console(file=out, force_terminal=True, color_system="truecolor", width=160).print(
        plan
    )
    assert "\x1b[" in out.getvalue() and "params['w']" in out.getvalue()


def test_plain_data(plan: Plan) -> None:
    data = plan.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["stage"] == 3 and data["axis_sizes"] == {"data": 8}
    assert data["local_bytes"] == plan.local_bytes
    leaf = next(leaf for leaf in data["state"] if leaf["path"] == "params['w']")
    assert leaf["spec"] == ["data"] and leaf["shape"] == [512, 1024]
    assert leaf["dtype"] == "float32" and leaf["role"] == "parameter"
    assert data["totals"][0]["role"] == "parameter"
    assert "params['odd']" in data["replicated_large"]
    assert data["config"]["axis"] == "data"
    assert data["batch"][0]["spec"] == ["data"]


def test_plain_data_of_a_predicate() -> None:
    config = ZeroConfig(params=lambda path: "w" in path, axis=("a", "b"))
    made = plan_of(3, w=jnp.ones((8, 8)), config=config, axis_sizes={"a": 2, "b": 2})
    assert "lambda" in json.dumps(made.to_dict())


def test_sizes_for_people() -> None:
    assert format_bytes(0) == "0 B"
    assert format_bytes(1023) == "1023 B"
    assert format_bytes(1024) == "1.00 KiB"
    assert format_bytes(5 * 2**40) == "5.00 TiB"
    assert format_bytes(2**52) == "4096.00 TiB"
