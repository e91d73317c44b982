"""Records of compiled steps. What they count: tests/benchmarks/test_formula.py."""

from __future__ import annotations

import functools
import json
from typing import Any

from benchmarks.findings import PLANTED, compile_planted
from jzero.audit.step_report import StepReport
from tests.jzero.audit.findings.clean_programs import compile_gpt
from tests.report_records import make_record


@functools.cache
def small_report() -> StepReport:
    """Of a scanned GPT at stage 3 on the CPUs that are there."""
    return compile_gpt(3, "cpu", True)


def keys_of(value: Any) -> Any:
    """The keys of a record, of its parts, and of the first of each list."""
    if isinstance(value, dict):
        return {key: keys_of(part) for key, part in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [keys_of(value[0])]
    return None


def test_the_record_has_the_keys_that_pages_are_drawn_from() -> None:
    found, wanted = keys_of(small_report().to_dict()), keys_of(make_record())
    del found["axis_sizes"], wanted["axis_sizes"]  # names of mesh axes
    assert found == wanted


def test_the_record_of_a_finding() -> None:
    (planted,) = (p for p in PLANTED if p.kind == "donation-lost")
    report = compile_planted(planted, "cpu")
    (record,) = report.to_dict()["findings"]
    assert record["kind"] == "donation-lost"
    assert set(record) == {"kind", "where", "num_bytes", "detail", "remedy"}
    assert report.lost_donation_bytes == record["num_bytes"] == planted.num_bytes


def test_the_record_survives_json() -> None:
    record = small_report().to_dict()
    assert json.loads(json.dumps(record)) == record


def test_numbers_of_a_record_agree() -> None:
    report = small_report()
    record = report.to_dict()
    assert record["axis_sizes"] == {"data": 8}
    sums = {
        key: sum(c[key] for c in record["collectives"])
        for key in ("step_moved_bytes", "exposed_bytes")
    }
    assert record["moved_bytes"] == report.moved_bytes == sums["step_moved_bytes"]
    assert record["exposed_bytes"] == report.exposed_bytes == sums["exposed_bytes"]
    assert 0 < record["exposed_bytes"] <= record["moved_bytes"]
    for collective in record["collectives"]:
        assert collective["exposed_bytes"] <= collective["step_moved_bytes"] + 1
    formula = record["formula"]
    kinds = ("all_gather_bytes", "reduce_scatter_bytes", "all_reduce_bytes")
    assert formula["moved_bytes"] == sum(formula[kind] for kind in kinds)
    estimate = record["estimate"]
    assert estimate["speeds_of"] == "unknown"
    assert 0 < estimate["compute_seconds"] <= estimate["seconds"]
    assert "not measured" in record["ran_on"]


def test_flops_are_those_of_the_matrix_products() -> None:
    """Six per weight and token for training, two more for what remat repeats.

    Nothing needs a block's result again, so its last product is not repeated.
    """
    tokens = 2 * 128
    matrices = 12 * 256**2
    attention = 2 * 128 * 256  # scores and sums, per token
    last = 4 * 256**2
    block = 8 * (matrices + attention) - 2 * last
    head = 6 * 1024 * 256
    assert small_report().flops == (2 * block + head) * tokens


def test_collectives_know_their_leaves() -> None:
    report = small_report()
    named = {path for row in report.collectives for path in row.leaves}
    sharded = {x.path for x in report.plan.state if x.is_sharded}
    params = {x.path for x in report.plan.state if x.role == "parameter"}
    assert sharded & params <= named


def test_the_page_is_one_file_of_this_step() -> None:
    page = small_report().to_html(hbm_bytes=10**9)
    assert page.lstrip().startswith("<!DOCTYPE html>")
    assert small_report().name in page
