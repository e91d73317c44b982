from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jzero.audit.memory import MemoryFacts, read_memory

P = PartitionSpec
X = jax.ShapeDtypeStruct((64, 256), jnp.float32)
NUM_BYTES = 64 * 256 * 4


def test_device_peak_is_argument_plus_output_less_alias_plus_temp() -> None:
    memory = MemoryFacts(
        argument_bytes=1000,
        output_bytes=900,
        alias_bytes=800,
        temp_bytes=70,
        host_argument_bytes=40,
        host_output_bytes=30,
        host_alias_bytes=20,
        host_temp_bytes=6,
    )
    assert memory.device_peak_bytes == 1170
    assert memory.host_peak_bytes == 56


def test_donation_lowers_the_peak() -> None:
    kept = read_memory(jax.jit(lambda x: x + 1.0).lower(X).compile())
    donated = read_memory(
        jax.jit(lambda x: x + 1.0, donate_argnums=0).lower(X).compile()
    )
    assert kept.argument_bytes == kept.output_bytes == NUM_BYTES
    assert (kept.alias_bytes, donated.alias_bytes) == (0, NUM_BYTES)
    assert kept.device_peak_bytes - donated.device_peak_bytes == NUM_BYTES


@pytest.mark.parametrize("num_devices", [1, 2, 4, 8])
def test_bytes_are_those_of_one_device(num_devices: int) -> None:
    mesh = Mesh(
        np.array(jax.devices()[:num_devices]), ("data",), axis_types=(AxisType.Auto,)
    )
    sharding = NamedSharding(mesh, P("data"))
    compiled = (
        jax.jit(lambda x: x + 1.0, in_shardings=sharding, out_shardings=sharding)
        .lower(X)
        .compile()
    )
    memory = read_memory(compiled)
    assert memory.argument_bytes == memory.output_bytes == NUM_BYTES // num_devices
