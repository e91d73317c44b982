from __future__ import annotations

from jzero.audit.hlo import parse_module
from jzero.audit.walk import Place, walk_program

TEXT = """HloModule m

%leaf (a: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  ROOT %work = f32[] negate(%a)
}

%sum (l: f32[], r: f32[]) -> f32[] {
  %l = f32[] parameter(0)
  %r = f32[] parameter(1)
  ROOT %never = f32[] add(%l, %r)
}

%branch (b: f32[]) -> f32[] {
  %b = f32[] parameter(0)
  ROOT %c1 = f32[] call(%b), to_apply=%leaf
}

%body (c: f32[]) -> f32[] {
  %c = f32[] parameter(0)
  %w2 = f32[] while(%c), condition=%test, body=%leaf, \
backend_config={"known_trip_count":{"n":"3"}}
  ROOT %f1 = f32[] fusion(%w2), kind=kLoop, calls=%leaf
}

%test (d: f32[]) -> pred[] {
  %d = f32[] parameter(0)
  ROOT %lt = pred[] is-finite(%d)
}

ENTRY %main (x: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %w1 = f32[] while(%x), condition=%test, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
  %w3 = f32[] while(%w1), condition=%test, body=%leaf
  %if = f32[] conditional(%w3, %x, %x), true_computation=%branch, \
false_computation=%leaf
  %as = ((f32[]), f32[], u32[]) async-start(%if), calls=%leaf
  %ad = f32[] async-done(%as), calls=%leaf
  ROOT %red = f32[] reduce(%ad, %x), dimensions={}, to_apply=%sum
}
"""


def places(name: str) -> list[Place]:
    return [
        place
        for _, instruction, place in walk_program(parse_module(TEXT))
        if instruction.name == name
    ]


def test_every_way_to_a_computation() -> None:
    assert places("work") == [
        Place(runs=15),  # in the inner loop
        Place(runs=5),  # in the fusion behind it
        Place(runs=1, is_runs_known=False),  # in the loop of unknown length
        Place(is_conditional=True),  # called from a branch
        Place(is_conditional=True),  # the other branch
        Place(is_async=True),  # once: its end names it again
    ]


def test_conditions_run_once_more() -> None:
    assert [place.runs for place in places("lt")] == [6, 20, 1]


def test_scalar_functions_of_reductions_are_no_place() -> None:
    assert places("never") == []
    assert places("red") == [Place()]
