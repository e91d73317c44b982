"""Copies between memories, counted in compiled text."""

from __future__ import annotations

from jzero.audit.hlo import parse_module
from jzero.audit.host_link import HostTraffic, read_host_traffic

# Two turns of a loop cut 4 of 8 numbers out of host memory and write 4 back; before
# it 16 numbers are copied in, and within the device 16 are copied besides.
TEXT = """HloModule jit_step, is_scheduled=true

%cut (p: f32[8], i: s32[]) -> f32[4] {
  %p = f32[8]{0:S(5)} parameter(0)
  %i = s32[] parameter(1)
  ROOT %part = f32[4]{0} dynamic-slice(%p, %i), dynamic_slice_sizes={4}
}

%body (t: (s32[], f32[8])) -> (s32[], f32[8]) {
  %t = (s32[], f32[8]{0:S(5)}) parameter(0)
  %n = s32[] get-tuple-element(%t), index=0
  %whole = f32[8]{0:S(5)} get-tuple-element(%t), index=1
  %tile = f32[4]{0} fusion(%whole, %n), kind=kLoop, calls=%cut
  %next = f32[8]{0:S(5)} dynamic-update-slice(%whole, %tile, %n)
  %one = s32[] constant(1)
  %more = s32[] add(%n, %one)
  ROOT %out = (s32[], f32[8]{0:S(5)}) tuple(%more, %next)
}

%condition (t: (s32[], f32[8])) -> pred[] {
  %t = (s32[], f32[8]{0:S(5)}) parameter(0)
  %n = s32[] get-tuple-element(%t), index=0
  %two = s32[] constant(2)
  ROOT %less = pred[] compare(%n, %two), direction=LT
}

ENTRY %main (a: f32[16], b: f32[8]) -> f32[8] {
  %a = f32[16]{0:S(5)} parameter(0)
  %b = f32[8]{0:S(5)} parameter(1)
  %start = (f32[16]{0}, f32[16]{0:S(5)}, u32[]) copy-start(%a)
  %here = f32[16]{0} copy-done(%start)
  %again = f32[16]{0} copy(%here)
  %zero = s32[] constant(0)
  %first = (s32[], f32[8]{0:S(5)}) tuple(%zero, %b)
  %loop = (s32[], f32[8]{0:S(5)}) while(%first), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"2"}}
  ROOT %last = f32[8]{0:S(5)} get-tuple-element(%loop), index=1
}
"""


def test_copies_slices_and_updates_times_the_trips() -> None:
    traffic = read_host_traffic(parse_module(TEXT))
    assert traffic == HostTraffic(
        to_device_bytes=4 * 16 + 2 * 4 * 4, to_host_bytes=2 * 4 * 4
    )


def test_a_program_of_one_memory_copies_nothing() -> None:
    text = TEXT.replace(":S(5)", "")
    assert read_host_traffic(parse_module(text)) == HostTraffic()


def test_what_a_computation_on_the_host_returns_to_the_device() -> None:
    text = """HloModule jit_step, is_scheduled=true

ENTRY %main (m: f32[8]) -> f32[8] {
  %m = f32[8]{0:S(5)} parameter(0)
  %call = ((f32[8]{0:S(5)}), (f32[8]{0}, f32[8]{0:S(5)}), u32[]) \
custom-call-start(%m), async_execution_thread="host", custom_call_target="HostExecute"
  %done = (f32[8]{0}, f32[8]{0:S(5)}) custom-call-done(%call)
  ROOT %new = f32[8]{0} get-tuple-element(%done), index=0
}
"""
    traffic = read_host_traffic(parse_module(text))
    assert traffic == HostTraffic(to_device_bytes=32, to_host_bytes=0)
