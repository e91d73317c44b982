"""Schedules that are played by hand: one second per operation and per byte sent."""

from __future__ import annotations

import pytest

from jzero.audit.collectives import read_collectives
from jzero.audit.hlo import parse_module
from jzero.audit.timeline import Hiding, Speeds, Timeline, play_schedule
from jzero.audit.work import Work

SPEEDS = Speeds(
    flops_per_second=1,
    memory_bytes_per_second=1e12,
    local_bytes_per_second=1,
    remote_bytes_per_second=0.5,
    num_local=4,
)
# One product of 2 x 2 x 4 x 3 = 48 operations.
DOT = "f32[2,4]{1,0} dot(%l, %r), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
OPERANDS = """  %l = f32[2,3]{1,0} iota(), iota_dimension=0
  %r = f32[3,4]{1,0} iota(), iota_dimension=0
"""
GROUPS = "replica_groups=[1,4]<=[4]"


def play(lines: str, others: str = "") -> Timeline:
    """Plays the body of an entry computation whose parameter is `%x`."""
    text = f"""HloModule m, num_partitions=4

%test (t: f32[8]) -> pred[] {{
  %t = f32[8]{{0}} parameter(0)
  ROOT %lt = pred[] is-finite(%t)
}}
{others}
ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
{OPERANDS}{lines}
  ROOT %end = f32[8]{{0}} bitcast(%x)
}}
"""
    module = parse_module(text)
    return play_schedule(module, read_collectives(module), SPEEDS)


def near(seconds: float) -> object:
    # Reading operands takes time too, but next to none.
    return pytest.approx(seconds, abs=1e-6)


GATHER = f"f32[32]{{0}} all-gather(%x), {GROUPS}, dimensions={{0}}"
START = f"(f32[8], f32[32]) all-gather-start(%x), {GROUPS}, dimensions={{0}}"
DONE = "f32[32]{0} all-gather-done(%s)"


def test_a_synchronous_collective_hides_behind_nothing() -> None:
    played = play(f"  %d = {DOT}\n  %g = {GATHER}\n")
    assert played.seconds == near(48 + 96)
    assert (played.compute_seconds, played.network_seconds) == (near(48), near(96))
    assert played.exposed_seconds == near(96)
    assert played.hiding["g"] == Hiding(between=Work(), exposed_bytes=96)


def test_work_between_start_and_end_hides_its_part() -> None:
    played = play(f"  %s = {START}\n  %d = {DOT}\n  %e = {DONE}\n")
    assert played.seconds == near(96)
    assert played.exposed_seconds == near(48)
    hiding = played.hiding["s"]
    assert hiding.between.flops == 48
    assert hiding.between.accessed_bytes == (6 + 12 + 8) * 4
    assert hiding.exposed_bytes == 48


def test_enough_work_hides_all_of_it() -> None:
    lines = "".join(f"  %d{i} = {DOT}\n" for i in range(3))
    played = play(f"  %s = {START}\n{lines}  %e = {DONE}\n")
    assert played.seconds == near(3 * 48)
    assert played.exposed_seconds == near(0)
    assert played.hiding["s"].exposed_bytes == 0


def test_the_network_takes_one_at_a_time() -> None:
    lines = (
        f"  %s = {START}\n  %s2 = {START}\n  %d = {DOT}\n"
        f"  %e = {DONE}\n  %e2 = f32[32]{{0}} all-gather-done(%s2)\n"
    )
    played = play(lines)
    assert played.seconds == near(2 * 96)
    assert played.exposed_seconds == near(48 + 96)


def test_a_variadic_collective_of_two_dtypes_in_nested_tuples() -> None:
    """f32[8] sends 3 x 32 bytes and bf16[8] 3 x 16, in one go."""
    lines = f"""  %b = bf16[8]{{0}} iota(), iota_dimension=0
  %s = ((f32[8], bf16[8]), (f32[32], bf16[32])) all-gather-start(%x, %b), {GROUPS}, \
dimensions={{0}}
  %d = {DOT}
  %e = (f32[32], bf16[32]) all-gather-done(%s)
"""
    played = play(lines)
    assert played.network_seconds == near(96 + 48)
    assert played.exposed_seconds == near(96 + 48 - 48)
    assert played.hiding["s"].exposed_bytes == 96
    (bar,) = [e for e in played.events if e.lane == "network"]
    assert (bar.label, bar.name, bar.end_seconds) == ("all-gather", "s", near(144))


LOOPS = f"""
%inner (i: f32[8]) -> f32[8] {{
  %i = f32[8]{{0}} parameter(0)
{OPERANDS}  %s = {START.replace("%x", "%i")}
  %d = {DOT}
  %e = {DONE}
  ROOT %same = f32[8]{{0}} bitcast(%i)
}}

%outer (o: f32[8]) -> f32[8] {{
  %o = f32[8]{{0}} parameter(0)
{OPERANDS}  %d5 = {DOT}
  ROOT %w5 = f32[8]{{0}} while(%o), condition=%test, body=%inner, \
backend_config={{"known_trip_count":{{"n":"5"}}}}
}}
"""


def test_a_loop_in_a_loop() -> None:
    line = """  %w = f32[8]{0} while(%x), condition=%test, body=%outer, \
backend_config={"known_trip_count":{"n":"3"}}
"""
    played = play(line, LOOPS)
    assert played.seconds == near(3 * (48 + 5 * 96))
    assert played.exposed_seconds == near(3 * 5 * 48)
    assert played.work.flops == 3 * (48 + 5 * 48)
    # Of the bytes of all fifteen executions; the work is that of one.
    assert played.hiding["s"].exposed_bytes == 3 * 5 * 48
    assert played.hiding["s"].between.flops == 48
    assert len([e for e in played.events if e.lane == "network"]) == 15
    assert max(e.end_seconds for e in played.events) == near(played.seconds)


def test_a_loop_of_unknown_length_runs_once() -> None:
    line = "  %w = f32[8]{0} while(%x), condition=%test, body=%inner\n"
    assert play(line, LOOPS).seconds == near(96)


@pytest.mark.parametrize(
    "branches",
    [
        "branch_computations={%inner, %outer}",
        "true_computation=%inner, false_computation=%outer",
    ],
)
def test_every_branch_counts(branches: str) -> None:
    line = f"""  %p = pred[] constant(true)
  %c = f32[8]{{0}} conditional(%p, %x, %x), {branches}
"""
    played = play(line, LOOPS)
    assert played.seconds == near(96 + 48 + 5 * 96)
    # One collective, reached in two ways.
    assert played.hiding["s"].exposed_bytes == 48 + 5 * 48


def test_long_loops_are_not_drawn_to_the_end() -> None:
    line = """  %w = f32[8]{0} while(%x), condition=%test, body=%inner, \
backend_config={"known_trip_count":{"n":"100000"}}
"""
    played = play(line, LOOPS)
    assert played.seconds == pytest.approx(96e5)
    assert 100 < len(played.events) < 10_000


def test_a_ring_over_several_hosts_uses_the_links_of_all() -> None:
    assert SPEEDS.moved_seconds(96, 4) == 96
    assert SPEEDS.moved_seconds(96, 8) == 96
    slow = Speeds(
        flops_per_second=1,
        memory_bytes_per_second=2,
        local_bytes_per_second=10,
        remote_bytes_per_second=0.5,
        num_local=4,
    )
    assert slow.moved_seconds(96, 4) == pytest.approx(9.6)
    assert slow.moved_seconds(96, 8) == 96 / (0.5 * 4)
    assert slow.work_seconds(Work(4, 2)) == 4
    assert slow.work_seconds(Work(1, 8)) == 4


def test_phases_of_the_arithmetic() -> None:
    names = {
        "forward": "jit(f)/jvp(Model)/dot",
        "backward": "jit(f)/transpose(jvp(Model))/dot",
        "update": "jit(f)/add",
    }
    lines = "".join(
        f'  %{label} = {DOT}, metadata={{op_name="{name}"}}\n'
        for label, name in names.items()
    )
    lines += f'  %re = {DOT}, metadata={{op_name="jvp/rematted_computation/dot"}}\n'
    events = play(lines).events
    assert [e.label for e in events if e.end_seconds - e.start_seconds > 1] == [
        "forward",
        "backward",
        "update",
        "backward",
    ]
