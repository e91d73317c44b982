from __future__ import annotations

import pytest

from jzero.audit.findings.origin import Origins
from jzero.audit.hlo import parse_module

# One loop saves a cast of each layer of `w`; the next one reads what was saved.
TEXT = """HloModule m

%cast (p: f32[4,8], i: s32[]) -> bf16[1,8] {
  %p = f32[4,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %ds = f32[1,8]{1,0} dynamic-slice(%p, %i, %i), dynamic_slice_sizes={1,8}
  ROOT %c = bf16[1,8]{1,0} convert(%ds)
}

%save (q: bf16[4,8], u: bf16[1,8], j: s32[]) -> bf16[4,8] {
  %q = bf16[4,8]{1,0} parameter(0)
  %u = bf16[1,8]{1,0} parameter(1)
  %j = s32[] parameter(2)
  ROOT %dus = bf16[4,8]{1,0} dynamic-update-slice(%q, %u, %j, %j)
}

%part (t: bf16[4,8], k: s32[]) -> bf16[1,8] {
  %t = bf16[4,8]{1,0} parameter(0)
  %k = s32[] parameter(1)
  ROOT %dk = bf16[1,8]{1,0} dynamic-slice(%t, %k, %k), dynamic_slice_sizes={1,8}
}

%forward (a: (s32[], f32[4,8], bf16[4,8], f32[8])) -> (s32[], f32[4,8], bf16[4,8], \
f32[8]) {
  %a = (s32[], f32[4,8]{1,0}, bf16[4,8]{1,0}, f32[8]{0}) parameter(0)
  %a0 = s32[] get-tuple-element(%a), index=0
  %a1 = f32[4,8]{1,0} get-tuple-element(%a), index=1
  %a2 = bf16[4,8]{1,0} get-tuple-element(%a), index=2
  %a3 = f32[8]{0} get-tuple-element(%a), index=3
  %layer = bf16[1,8]{1,0} fusion(%a1, %a0), kind=kLoop, calls=%cast
  %saved = bf16[4,8]{1,0} fusion(%a2, %layer, %a0), kind=kLoop, calls=%save
  %carried = f32[8]{0} tanh(%a3)
  ROOT %out = (s32[], f32[4,8]{1,0}, bf16[4,8]{1,0}, f32[8]{0}) tuple(%a0, %a1, \
%saved, %carried)
}

%backward (b: (s32[], bf16[4,8])) -> (s32[], bf16[4,8]) {
  %b = (s32[], bf16[4,8]{1,0}) parameter(0)
  %b0 = s32[] get-tuple-element(%b), index=0
  %b1 = bf16[4,8]{1,0} get-tuple-element(%b), index=1
  %bs = ((bf16[4,8], s32[]), bf16[1,8], u32[]) fusion-start(%b1, %b0), kind=kLoop, \
calls=%part
  %again = bf16[1,8]{1,0} fusion-done(%bs)
  ROOT %outb = (s32[], bf16[4,8]{1,0}) tuple(%b0, %b1)
}

%test (d: f32[]) -> pred[] {
  %d = f32[] parameter(0)
  ROOT %lt = pred[] is-finite(%d)
}

ENTRY %main (w: f32[8,4], x: f32[8]) -> bf16[4,8] {
  %w = f32[8,4]{1,0} parameter(0)
  %x = f32[8]{0} parameter(1)
  %zero = s32[] constant(0)
  %wt = f32[4,8]{1,0} transpose(%w), dimensions={1,0}
  %room = bf16[4,8]{1,0} broadcast(%zero), dimensions={}
  %t1 = (s32[], f32[4,8]{1,0}, bf16[4,8]{1,0}, f32[8]{0}) tuple(%zero, %wt, %room, %x)
  %w1 = (s32[], f32[4,8]{1,0}, bf16[4,8]{1,0}, f32[8]{0}) while(%t1), \
condition=%test, body=%forward
  %kept = bf16[4,8]{1,0} get-tuple-element(%w1), index=2
  %last = f32[8]{0} get-tuple-element(%w1), index=3
  %same = f32[4,8]{1,0} get-tuple-element(%w1), index=1
  %t2 = (s32[], bf16[4,8]{1,0}) tuple(%zero, %kept)
  %w2 = (s32[], bf16[4,8]{1,0}) while(%t2), condition=%test, body=%backward
  ROOT %end = bf16[4,8]{1,0} get-tuple-element(%w2), index=1
}
"""


@pytest.mark.parametrize(
    ("place", "name", "argument"),
    [
        ("main", "w", "w"),
        ("main", "wt", "w"),
        ("forward", "layer", "w"),  # into the loop, through a fusion
        ("main", "kept", "w"),  # out of the loop, where it is stacked
        ("backward", "again", "w"),  # into the next one, asynchronously
        ("main", "same", "w"),  # what a loop hands on untouched
        ("main", "end", "w"),
        ("forward", "a3", "x"),  # what it starts with
        ("main", "last", None),  # computed
        ("main", "room", None),
        ("main", "nowhere", None),
    ],
)
def test_the_argument_behind_a_value(
    place: str, name: str, argument: str | None
) -> None:
    module = parse_module(TEXT)
    found = Origins(module).argument(module.computations[place], name)
    assert (found.name if found else None) == argument
