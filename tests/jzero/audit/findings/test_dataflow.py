from __future__ import annotations

import pytest

from jzero.audit.findings.dataflow import SAME_OR_CAST, Flow
from jzero.audit.hlo import Computation, parse_module

TEXT = """HloModule m

%narrowed (p: f32[64], q: f32[64]) -> bf16[64] {
  %p = f32[64]{0} parameter(0)
  %q = f32[64]{0} parameter(1)
  %pb = f32[64]{0} bitcast(%p)
  %pc = bf16[64]{0} convert(%pb)
  %qc = bf16[64]{0} convert(%q)
  ROOT %sum = bf16[64]{0} add(%pc, %qc)
}

%renamed (n: f32[64]) -> f32[8,8] {
  %n = f32[64]{0} parameter(0)
  ROOT %nb = f32[8,8]{1,0} bitcast(%n)
}

%pair (a: f32[64], b: f32[64]) -> (f32[64], f32[64]) {
  %a = f32[64]{0} parameter(0)
  %b = f32[64]{0} parameter(1)
  %ab = f32[64]{0} multiply(%a, %b)
  %ac = f32[64]{0} copy(%a)
  ROOT %both = (f32[64]{0}, f32[64]{0}) tuple(%ab, %ac)
}

%own (w: f32[64], i: s32[]) -> f32[8] {
  %w = f32[64]{0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %part = f32[8]{0} dynamic-slice(%w, %i), dynamic_slice_sizes={8}
}

ENTRY %main (x: f32[8], y: bf16[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0), metadata={op_name="lists[0][0]"}
  %y = bf16[8]{0} parameter(1)
  %id = u32[] partition-id()
  %at = s32[] convert(%id)
  %s = ((f32[8], bf16[8]), (f32[64], bf16[64])) all-gather-start(%x, %y)
  %e = (f32[64]{0}, bf16[64]{0}) all-gather-done(%s)
  %e0 = f32[64]{0} get-tuple-element(%e), index=0
  %e1 = bf16[64]{0} get-tuple-element(%e), index=1
  %c1 = f32[64]{0} convert(%e1)
  %f1 = bf16[64]{0} fusion(%e0, %c1), kind=kLoop, calls=%narrowed
  %s1 = f32[8]{0} fusion(%c1, %at), kind=kLoop, calls=%own
  %g = f32[64]{0} all-gather(%x)
  %r1 = f32[8,8]{1,0} fusion(%g), kind=kLoop, calls=%renamed
  %abs = f32[8,8]{1,0} abs(%r1)
  %f2 = (f32[64]{0}, f32[64]{0}) fusion(%g, %c1), kind=kLoop, calls=%pair
  %f20 = f32[64]{0} get-tuple-element(%f2), index=0
  %f21 = f32[64]{0} get-tuple-element(%f2), index=1
  %neg = f32[64]{0} negate(%f20)
  %exp = f32[64]{0} exponential(%f21)
  %r = f32[64]{0} all-reduce(%g)
  %part = f32[32]{0} slice(%r), slice={[0:32]}
  %d = f32[8]{0} fusion(%r, %at), kind=kLoop, calls=%own
  %d2 = f32[8]{0} dynamic-slice(%part, %at), dynamic_slice_sizes={8}
  ROOT %out = f32[8]{0} add(%d, %d2)
}
"""


@pytest.fixture
def entry() -> Computation:
    return parse_module(TEXT).entry_computation


@pytest.fixture
def flow() -> Flow:
    return Flow(parse_module(TEXT))


def names(found) -> list[str]:
    return sorted(reader.name for _, reader, _ in found)


def test_users(flow: Flow, entry: Computation) -> None:
    assert [u.name for u in flow.users(entry, "c1")] == ["f1", "s1", "f2"]
    assert flow.users(entry, "out") == []


def test_readers_of_one_part_of_an_asynchronous_tuple(
    flow: Flow, entry: Computation
) -> None:
    """Through the end, the tuple and a bitcast within the fusion."""
    assert names(flow.readers(entry, "s", 0)) == ["pc"]
    assert names(flow.readers(entry, "s", 1)) == ["c1"]
    assert names(flow.readers(entry, "s")) == ["c1", "pc"]
    assert [part.name for part in flow.parts(entry, "s", 1)] == ["e1"]


def test_readers_beyond_casts(flow: Flow, entry: Computation) -> None:
    through = names(flow.readers(entry, "s", 1, SAME_OR_CAST))
    assert through == ["ab", "part", "sum"]


def test_readers_beyond_a_fusion_that_changes_nothing(
    flow: Flow, entry: Computation
) -> None:
    """As the whole result, and as one of several: `%exp` reads it and `%neg` not."""
    assert names(flow.readers(entry, "g")) == ["ab", "abs", "exp", "r"]


def test_what_is_only_sliced(flow: Flow, entry: Computation) -> None:
    assert flow.is_only_sliced(entry, "r")
    assert not flow.is_only_sliced(entry, "g")
    assert not flow.is_only_sliced(entry, "out")  # nothing reads it


def test_what_is_only_cast(flow: Flow, entry: Computation) -> None:
    assert flow.is_only_cast(entry, "s", ("bf16", "f16"), 0)
    assert not flow.is_only_cast(entry, "s", ("f16",), 0)
    assert not flow.is_only_cast(entry, "s", ("bf16",), 1)
    assert not flow.is_only_cast(entry, "g", ("bf16",))


def test_near_sources(flow: Flow, entry: Computation) -> None:
    assert flow.comes_from(entry, "at", "partition-id")
    assert flow.comes_from(entry, "f1", "convert")  # inside the fusion
    assert not flow.comes_from(entry, "c1", "partition-id")
    assert not flow.comes_from(entry, "at", "partition-id", depth=1)
