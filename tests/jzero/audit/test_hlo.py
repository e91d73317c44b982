from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jzero.audit.hlo import parse_module

TEXT = """HloModule jit_step, is_scheduled=true, replica_count=2, num_partitions=4

%inner (p: f32[2], q: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  %q = f32[2]{0} parameter(1)
  ROOT %s = f32[2]{0} add(%p, %q), metadata={op_name="jit(f)/a\\"b)c(" stack_frame_id=1}
}, execution_thread="parallel"

ENTRY %main.1 (x: f32[2], y: (f32[2], (s8[], pred[]))) -> (f32[2], f32[2]) {
  %x = f32[2]{0:T(128)} parameter(0)
  %y = (f32[2]{0}, /*index=1*/(s8[], pred[])) parameter(1)
  %g = f32[2]{0} get-tuple-element(%y), index=0
  %c = f32[] constant(1)
  %str = opaque[] constant("a) b(")
  %call.1 = f32[2]{0} call(%x, %g), to_apply=%inner
  %st = ((f32[2]{0}, f32[2]{0}), (f32[8]{0}, f32[8]{0})) all-gather-start(\
%x, /*index=1*/%g), replica_groups={{0,1,2,3}}, dimensions={0}
  %dn = (f32[8]{0}, f32[8]{0}) all-gather-done(%st)
  %old = f32[2]{0} negate(f32[2]{0:T(128)} %x)
  %w = (s32[], f32[2]{0}) while(%y), condition=%c1, body=%b1, \
backend_config={"known_trip_count":{"n":"12"}}
  %w2 = (s32[], f32[2]{0}) while(%y), condition=%c1, body=%b1, \
backend_config="{\\"known_trip_count\\":{\\"n\\":\\"7\\"}}"
  %cond = f32[2]{0} conditional(%c, %x, %x), branch_computations={%inner, %other.2}
  ROOT %out = (f32[2]{0}, f32[2]{0}) tuple(%call.1, %x)
}
"""


def test_computations_and_roots() -> None:
    module = parse_module(TEXT)
    assert module.name == "jit_step"
    assert module.num_devices == 8
    assert list(module.computations) == ["inner", "main.1"]
    assert module.entry_computation.name == "main.1"
    root = module.entry_computation.root_instruction
    assert root is not None and root.operands == ("call.1", "x")


def test_instructions() -> None:
    main = parse_module(TEXT).entry_computation.instructions
    assert main["st"].opcode == "all-gather-start"
    assert main["st"].operands == ("x", "g")
    assert [str(shape) for shape in main["st"].shapes] == 2 * ["f32[2]"] + 2 * [
        "f32[8]"
    ]
    assert [str(shape) for shape in main["y"].shapes] == ["f32[2]", "s8[]", "pred[]"]
    assert main["old"].operands == ("x",)
    assert main["x"].operands == ("0",)
    assert main["w"].known_trips == 12
    assert main["w2"].known_trips == 7
    assert main["g"].known_trips is None
    assert main["w"].called("body") == ("b1",)
    assert main["cond"].called("branch_computations") == ("inner", "other.2")
    assert main["call.1"].called("calls") == ()


def test_quoted_brackets_do_not_close() -> None:
    module = parse_module(TEXT)
    assert module.entry_computation.instructions["str"].operand_text == '"a) b("'
    assert module.computations["inner"].instructions["s"].op_name == 'jit(f)/a"b)c('


def test_names_without_percent_signs() -> None:
    module = parse_module(TEXT.replace("%", ""))
    main = module.entry_computation.instructions
    assert main["st"].operands == ("x", "g")
    assert main["w"].called("body") == ("b1",)
    assert main["cond"].called("branch_computations") == ("inner", "other.2")


def test_text_without_an_entry_is_an_error() -> None:
    with pytest.raises(ValueError, match="no ENTRY"):
        parse_module("HloModule m\n")


def test_every_operand_of_a_compiled_program_is_known() -> None:
    def f(x: jax.Array) -> jax.Array:
        def body(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.sort(jnp.sin(carry) @ carry, axis=0), None

        return jax.lax.scan(body, x, None, length=3)[0].sum()

    text = jax.jit(jax.grad(f)).lower(jnp.ones((8, 8))).compile().as_text()
    module = parse_module(text)
    num_instructions = 0
    for computation in module.computations.values():
        assert computation.root in computation.instructions
        for instruction in computation.instructions.values():
            num_instructions += 1
            if instruction.opcode not in ("parameter", "constant"):
                assert set(instruction.operands) <= set(computation.instructions)
    # One line with " = " per instruction, and no line lost.
    in_text = [x for x in text.splitlines() if x.startswith("  ") and " = " in x]
    assert num_instructions == len(in_text) > 20
