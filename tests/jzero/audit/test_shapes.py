from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jzero.audit.hlo import parse_module
from jzero.audit.shapes import read_shapes


@pytest.mark.parametrize(
    ("text", "dims", "num_bytes"),
    [
        ("f32[]", (), 4),
        ("f32[0,4]{1,0}", (0, 4), 0),
        ("bf16[8,4]{1,0:T(8,128)(2,1)}", (8, 4), 64),
        ("pred[5]{0}", (5,), 5),
        ("c64[3]{0}", (3,), 24),
        ("c128[3]{0}", (3,), 48),
        ("f8e4m3fn[6]{0}", (6,), 6),
        ("f8e4m3b11fnuz[6]{0}", (6,), 6),
        ("s4[7]{0:E(4)}", (7,), 4),
        ("s4[7]{0}", (7,), 7),
        ("u2[9]{0:E(2)}", (9,), 3),
        ("f4e2m1fn[8]{0:E(4)}", (8,), 4),
        ("f32[<=16,2]{1,0}", (16, 2), 128),
        ("token[]", (), 0),
    ],
)
def test_bytes_of_one_array(text: str, dims: tuple[int, ...], num_bytes: int) -> None:
    (shape,) = read_shapes(text)
    assert (shape.dims, shape.num_bytes) == (dims, num_bytes)


def test_nested_tuples_flatten_and_comments_vanish() -> None:
    text = "((f32[2]{0}, (s8[3]{0:S(1)}, pred[])), /*index=2*/bf16[4]{0:T(256)S(5)})"
    shapes = read_shapes(text)
    assert [str(shape) for shape in shapes] == ["f32[2]", "s8[3]", "pred[]", "bf16[4]"]
    assert [shape.memory_space for shape in shapes] == [0, 1, 0, 5]


def test_unknown_width_is_an_error() -> None:
    with pytest.raises(ValueError, match="'blob' of unknown size"):
        read_shapes("blob[3]")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4", "bool"])
def test_parameters_of_a_compiled_program(dtype: str) -> None:
    x = jax.ShapeDtypeStruct((16, 2), jnp.dtype(dtype))
    compiled = jax.jit(lambda x: x.astype(jnp.float32) + 1.0).lower(x).compile()
    module = parse_module(compiled.as_text())
    (parameter,) = (
        instruction
        for instruction in module.entry_computation.instructions.values()
        if instruction.opcode == "parameter"
    )
    (shape,) = parameter.shapes
    assert shape.dims == (16, 2)
    assert shape.num_bytes == compiled.memory_analysis().argument_size_in_bytes
