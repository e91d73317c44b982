"""Reports of compiled steps against counts that are made here, by other means."""

from __future__ import annotations

import functools
import json
from typing import Any

import jax
import pytest

import jzero
from benchmarks.findings import PLANTED, compile_planted
from jzero.audit.pods import pod_mesh
from jzero.audit.step_report import StepReport
from tests.jzero.audit.findings.clean_programs import compile_gpt, gpt_program
from tests.needs import needs_compiler
from tests.report_records import make_record

THRESHOLD = 2**14
PODS = {8: "h100:1x8", 64: "h100:8x8", 1024: "h100:128x8"}


def local_elems(leaf: Any, num_devices: int, is_split: bool) -> int:
    """Elements on one device; what does not divide, or is small, stays whole."""
    divides = any(length % num_devices == 0 for length in leaf.shape)
    if is_split and divides and leaf.size >= THRESHOLD:
        return leaf.size // num_devices
    return leaf.size


def sent_by_hand(params: Any, stage: int, num_devices: int) -> float:
    """Bytes that one device sends, in bfloat16.

    At stage 3 the blocks are gathered twice, forward and backward. The embedding is
    looked up, which needs no weight backward, and backward begins with the head while
    it is still there: these two are gathered once.
    """
    rows = jax.tree_util.tree_leaves_with_path(params)
    units = 0.0
    for path, leaf in rows:
        name = jax.tree_util.keystr(path)
        is_block = "lock" in name or "layers" in name
        is_whole = local_elems(leaf, num_devices, True) == leaf.size
        num_gathers = 2 if stage == 3 and is_block and not is_whole else 1
        units += leaf.size * (num_gathers + 1)
    return units * 2 * (num_devices - 1) / num_devices


@needs_compiler
@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("is_scanned", [False, True])
@pytest.mark.parametrize("num_devices", PODS)
def test_a_gpt_holds_and_sends_what_is_counted_by_hand(
    is_scanned: bool, stage: int, num_devices: int
) -> None:
    program = gpt_program(num_devices, is_scanned)
    config = jzero.ZeroConfig(on_finding="raise")
    step = jzero.shard_train_step(
        program.step, stage=stage, mesh=pod_mesh(PODS[num_devices]), config=config
    )
    report = step.compile(program.state, program.batch).report()
    params = program.state.params
    counted = sum(
        4 * local_elems(leaf, num_devices, stage > 0)
        for leaf in jax.tree.leaves(params)
    )
    rows = {row.role: row for row in report.resident}
    assert rows["parameter"].compiled_bytes == pytest.approx(counted, rel=0.01)
    assert rows["optimizer"].compiled_bytes == pytest.approx(2 * counted, rel=0.01)
    assert rows["data"].compiled_bytes == 2 * (2 * 128 * 4)
    for row in rows.values():
        assert row.planned_bytes == pytest.approx(row.compiled_bytes, rel=0.01)
    resident = sum(row.compiled_bytes for row in rows.values())
    assert report.memory.argument_bytes == pytest.approx(resident, rel=0.01)
    by_hand = sent_by_hand(params, stage, num_devices)
    assert report.moved_bytes == pytest.approx(by_hand, rel=0.01)
    if stage < 3:
        assert report.traffic.moved_bytes == pytest.approx(by_hand, rel=0.01)
    assert (report.num_devices, report.platform) == (num_devices, "gpu")
    assert report.elem_bytes == 2
    assert report.findings == ()


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
