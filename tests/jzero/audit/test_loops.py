from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest

from jzero.audit.hlo import parse_module
from jzero.audit.loops import count_trips

TEXT = """HloModule m

%add_fused (a: s32[], b: s32[]) -> s32[] {{
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %add = s32[] {add}
}}

%body (p: (s32[], f32[2])) -> (s32[], f32[2]) {{
  %p = (s32[], f32[2]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[2]{{0}} get-tuple-element(%p), index=1
  %step = s32[] constant({step})
  %next = s32[] fusion(%i, %step), kind=kLoop, calls=%add_fused
  ROOT %t = (s32[], f32[2]{{0}}) tuple(%next, %x)
}}

%test (p.1: (s32[], f32[2])) -> pred[] {{
  %p.1 = (s32[], f32[2]{{0}}) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  %limit = s32[] constant({limit})
  ROOT %compare = pred[] compare({sides}), direction={direction}
}}

ENTRY %main (x.1: f32[2]) -> (s32[], f32[2]) {{
  %x.1 = f32[2]{{0}} parameter(0)
  %zero = s32[] {start}
  %start = s32[] copy(%zero)
  %init = (s32[], f32[2]{{0}}) tuple(%start, %x.1)
  ROOT %loop = (s32[], f32[2]{{0}}) while(%init), condition=%test, body=%body
}}
"""


def trips(**changes: str) -> int | None:
    settings = {
        "add": "add(%a, %b)",
        "step": "1",
        "limit": "10",
        "sides": "%i.1, %limit",
        "direction": "LT",
        "start": "constant(0)",
    }
    module = parse_module(TEXT.format(**settings | changes))
    main = module.entry_computation
    return count_trips(module, main, main.instructions["loop"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 10),
        ({"direction": "LE"}, 11),
        ({"direction": "NE"}, 10),
        ({"step": "3"}, 4),
        ({"start": "constant(4)"}, 6),
        ({"start": "constant(12)"}, 0),
        ({"sides": "%limit, %i.1", "direction": "GT"}, 10),
        ({"add": "add(%b, %a)"}, 10),
        ({"add": "subtract(%a, %b)", "limit": "-5", "direction": "GT"}, 5),
        ({"add": "subtract(%a, %b)", "limit": "-5", "direction": "GE"}, 6),
        # What cannot be told must not be guessed.
        ({"start": "parameter(1)"}, None),
        ({"add": "multiply(%a, %b)"}, None),
        ({"step": "0"}, None),
        ({"direction": "EQ"}, None),
        ({"direction": "GT"}, None),
        ({"step": "3", "direction": "NE"}, None),
        ({"sides": "%i.1, %i.1"}, None),
    ],
)
def test_counters(changes: dict[str, str], expected: int | None) -> None:
    assert trips(**changes) == expected


def loops_of(text: str) -> list[int | None]:
    module = parse_module(text)
    return sorted(
        (
            count_trips(module, computation, instruction)
            for computation in module.computations.values()
            for instruction in computation.instructions.values()
            if instruction.opcode == "while"
        ),
        key=str,
    )


def compiled_loops() -> str:
    def f(x: jax.Array) -> jax.Array:
        def inner(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.sin(carry) @ carry, None

        def outer(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.lax.scan(inner, carry, None, length=7)[0], None

        x, _ = jax.lax.scan(outer, x, None, length=5)
        return jax.lax.while_loop(lambda x: x.sum() < 9.0, lambda x: x + 1.0, x)

    return jax.jit(f).lower(jnp.ones((8, 8))).compile().as_text()


def test_compiled_loops() -> None:
    assert loops_of(compiled_loops()) == [5, 7, None]


def test_compiled_loops_without_the_compilers_word() -> None:
    text, count = re.subn(r"\"known_trip_count\":\{[^}]*\}", '"x":{}', compiled_loops())
    assert count == 2
    assert loops_of(text) == [5, 7, None]
