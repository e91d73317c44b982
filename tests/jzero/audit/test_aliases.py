from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import jzero
from jzero.audit.aliases import Argument, read_arguments, read_position
from jzero.audit.hlo import parse_module

Arrays = dict[str, jax.Array]

TEXT = """HloModule jit_step, num_partitions=8, input_output_alias={ {0}: (0, {}, \
may-alias), {1, 0}: (3, {}, must-alias) }, entry_computation_layout={(f32[4]{0})->()}

ENTRY %main (a: f32[4,2], b: bf16[8], c: f32[64], d: s32[]) -> (f32[4,2], s32[]) {
  %b = bf16[8]{0} parameter(2), metadata={op_name="lists[1][3]"}
  %a = f32[4,2]{1,0} parameter(0), metadata={op_name="lists[0][0]"}
  %c = f32[64]{0:S(5)} parameter(1), metadata={op_name="lists[0][12]"}
  %d = s32[] parameter(3)
  ROOT %t = (f32[4,2]{1,0}, s32[]) tuple(%a, %d)
}
"""


def test_arguments_in_order_with_what_reuses_them() -> None:
    assert read_arguments(parse_module(TEXT)) == (
        Argument(
            number=0,
            position=(0, 0),
            name="a",
            num_bytes=32,
            memory_space=0,
            is_reused=True,
        ),
        Argument(
            number=1,
            position=(0, 12),
            name="c",
            num_bytes=256,
            memory_space=5,
            is_reused=False,
        ),
        Argument(
            number=2,
            position=(1, 3),
            name="b",
            num_bytes=16,
            memory_space=0,
            is_reused=False,
        ),
        Argument(
            number=3,
            position=None,
            name="d",
            num_bytes=4,
            memory_space=0,
            is_reused=True,
        ),
    )


def test_a_program_without_donation() -> None:
    text = TEXT.replace("input_output_alias", "nothing")
    assert not any(a.is_reused for a in read_arguments(parse_module(text)))


@pytest.mark.parametrize(
    ("op_name", "position"),
    [
        ("lists[2][11]", (2, 11)),
        ("lists[2]", None),
        ("jit(step)/lists[0][1]", None),
        ("", None),
    ],
)
def test_positions(op_name: str, position: tuple[int, int] | None) -> None:
    assert read_position(op_name) == position


def test_arguments_of_a_compiled_step() -> None:
    """Compilers number only what is read; `opt["unread"]` has no argument."""

    def train_step(params: Arrays, opt: Arrays, x: jax.Array):
        new = {"unread": jnp.zeros((32,)), "used": opt["used"] + params["w"].sum()}
        return {"w": params["w"] - x.mean()}, new, x.sum()

    step = jzero.shard_train_step(
        train_step,
        config=jzero.ZeroConfig(persistence_threshold=0, on_finding="ignore"),
    )
    structs = (
        {"w": jax.ShapeDtypeStruct((16, 4), jnp.float32)},
        {k: jax.ShapeDtypeStruct((32,), jnp.float32) for k in ("unread", "used")},
        jax.ShapeDtypeStruct((8, 3), jnp.float32),
    )
    text = step.compile(*structs).as_text()
    found = {a.position: a for a in read_arguments(parse_module(text))}
    sizes = {position: a.num_bytes for position, a in found.items()}
    assert sizes == {(0, 0): 16 * 4 * 4 // 8, (1, 1): 32 * 4 // 8, (2, 0): 3 * 4}
    reused = {position for position, a in found.items() if a.is_reused}
    assert reused == {(0, 0), (1, 1)}
