from __future__ import annotations

from typing import Any, cast

import pytest

from jzero.audit.findings.dataflow import Flow
from jzero.audit.findings.updated import find_updated_leaf
from jzero.audit.hlo import Module, parse_module
from jzero.plan.plan import LeafPlan

# Two gradients in one all-reduce; one fusion updates both moments.
TEXT = """HloModule m

%moments (g: f32[8], h: f32[8], m: f32[4], n: f32[4], i: s32[], c: f32[]) -> \
(f32[4], f32[4]) {
  %g = f32[8]{0} parameter(0)
  %h = f32[8]{0} parameter(1)
  %m = f32[4]{0} parameter(2)
  %n = f32[4]{0} parameter(3)
  %i = s32[] parameter(4)
  %c = f32[] parameter(5)
  %gs = f32[4]{0} dynamic-slice(%g, %i), dynamic_slice_sizes={4}
  %hs = f32[4]{0} dynamic-slice(%h, %i), dynamic_slice_sizes={4}
  %cb = f32[4]{0} broadcast(%c), dimensions={}
  %gc = f32[4]{0} multiply(%gs, %cb)
  %hc = f32[4]{0} multiply(%hs, %cb)
  %mc = f32[4]{0} multiply(%m, %cb)
  %nc = f32[4]{0} multiply(%n, %cb)
  %gm = f32[4]{0} add(%gc, %mc)
  %hn = f32[4]{0} add(%hc, %nc)
  ROOT %both = (f32[4]{0}, f32[4]{0}) tuple(%gm, %hn)
}

ENTRY %main (m: f32[4], n: f32[4], w: f32[4], s: f32[], d: f32[8]) -> f32[] {
  %m = f32[4]{0} parameter(0), metadata={op_name="lists[0][0]"}
  %n = f32[4]{0} parameter(1), metadata={op_name="lists[0][1]"}
  %w = f32[4]{0} parameter(2), metadata={op_name="lists[0][2]"}
  %s = f32[] parameter(3), metadata={op_name="lists[0][3]"}
  %d = f32[8]{0} parameter(4), metadata={op_name="lists[1][0]"}
  %i = s32[] constant(0)
  %ar = (f32[8]{0}, f32[8]{0}) all-reduce(%d, %d)
  %a0 = f32[8]{0} get-tuple-element(%ar), index=0
  %a1 = f32[8]{0} get-tuple-element(%ar), index=1
  %f = (f32[4]{0}, f32[4]{0}) fusion(%a0, %a1, %m, %n, %i, %s), kind=kLoop, \
calls=%moments
  %rs = f32[4]{0} reduce-scatter(%d)
  %e = f32[4]{0} convert(%rs)
  %new = f32[4]{0} subtract(%w, %e)
  %lost = f32[4]{0} reduce-scatter(%d)
  ROOT %norm = f32[] reduce(%lost, %s), dimensions={0}, to_apply=%never
}
"""
# The paths are all that is asked of a leaf here.
LEAVES = {(0, i): cast(LeafPlan, name) for i, name in enumerate("mnws")}


def find(module: Module, name: str, index: int | None) -> LeafPlan | None:
    homes = (c for c in module.computations.values() if name in c.instructions)
    return find_updated_leaf(module, Flow(module), next(homes), name, index, LEAVES)


@pytest.mark.parametrize(
    ("name", "index", "leaf"),
    [("ar", 0, "m"), ("ar", 1, "n"), ("rs", None, "w"), ("lost", None, None)],
)
def test_what_a_gradient_meets_first(name: str, index: int | None, leaf: Any) -> None:
    module = parse_module(TEXT)
    assert find(module, name, index) == leaf


def test_other_sizes_are_no_update() -> None:
    module = parse_module(TEXT.replace("%w = f32[4]", "%w = f32[5]"))
    assert find(module, "rs", None) is None


LOOP = """HloModule m

%body (b: (s32[], f32[3,4], f32[3,4])) -> (s32[], f32[3,4], f32[3,4]) {
  %b = (s32[], f32[3,4]{1,0}, f32[3,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %b1 = f32[3,4]{1,0} get-tuple-element(%b), index=1
  %b2 = f32[3,4]{1,0} get-tuple-element(%b), index=2
  %ar = f32[1,4]{1,0} all-reduce(%i)
  %rs = f32[1,4]{1,0} reduce-scatter(%i)
  %d1 = f32[3,4]{1,0} dynamic-update-slice(%b1, %ar, %i, %i)
  %d2 = f32[3,4]{1,0} dynamic-update-slice(%b2, %rs, %i, %i)
  ROOT %out = (s32[], f32[3,4]{1,0}, f32[3,4]{1,0}) tuple(%i, %d2, %d1)
}

ENTRY %main (m: f32[3,4], n: f32[3,4], t: (s32[], f32[3,4], f32[3,4])) -> f32[3,4] {
  %m = f32[3,4]{1,0} parameter(0), metadata={op_name="lists[0][0]"}
  %n = f32[3,4]{1,0} parameter(1), metadata={op_name="lists[0][1]"}
  %t = (s32[], f32[3,4]{1,0}, f32[3,4]{1,0}) parameter(2)
  %w = (s32[], f32[3,4]{1,0}, f32[3,4]{1,0}) while(%t), condition=%c, body=%body
  %w1 = f32[3,4]{1,0} get-tuple-element(%w), index=1
  %w2 = f32[3,4]{1,0} get-tuple-element(%w), index=2
  %new = f32[3,4]{1,0} subtract(%m, %w1)
  ROOT %other = f32[3,4]{1,0} subtract(%n, %w2)
}
"""


@pytest.mark.parametrize(("name", "leaf"), [("ar", "n"), ("rs", "m")])
def test_gradients_that_a_loop_stacks(name: str, leaf: Any) -> None:
    assert find(parse_module(LOOP), name, None) == leaf
