"""Every dtype that the format lacks comes back bit for bit."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jzero.checkpoint.storable import decode, dtype_of, encode, storable
from jzero.checkpoint.tensor_file import format_name


@pytest.mark.parametrize(
    "name",
    [
        *("int4", "uint4", "int2", "uint2", "bool", "complex64", "complex128"),
        *("float8_e4m3b11fnuz", "float8_e3m4", "float4_e2m1fn", "bfloat16", "float32"),
    ],
)
@pytest.mark.parametrize("shape", [(2, 2), (), (0, 3)])
def test_there_and_back(name: str, shape: tuple[int, ...]) -> None:
    dtype = dtype_of(name)
    values = np.resize(np.asarray([0, 1, 1, 0]), shape).astype(dtype)
    wanted, wanted_shape = storable(dtype, shape)
    assert format_name(wanted) is not None
    encoded = encode(values, wanted)
    assert encoded.dtype == wanted and encoded.size == np.prod(wanted_shape)
    decoded = decode(encoded.reshape(wanted_shape), dtype)
    assert decoded.dtype == dtype and decoded.shape == shape
    assert decoded.tobytes() == values.tobytes()


def test_narrow_integers_stay_readable() -> None:
    values = np.asarray([-8, 7]).astype(jnp.int4)
    assert encode(values, storable(values.dtype, (2,))[0]).tolist() == [-8, 7]
