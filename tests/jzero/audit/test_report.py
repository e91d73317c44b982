from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, PartitionSpec

from jzero.audit.report import StepAudit, audit_compiled

NUM_PARAMS = 32 * 64


def audit(body: Callable[..., Any], num_devices: int = 8) -> StepAudit:
    mesh = Mesh(
        np.array(jax.devices()[:num_devices]), ("data",), axis_types=(AxisType.Auto,)
    )
    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec()
    )
    x = jax.ShapeDtypeStruct((32, 64), jnp.float32)
    return audit_compiled(jax.jit(mapped).lower(x).compile())


def reduced(times: int) -> Callable[..., Any]:
    def body(x: jax.Array) -> jax.Array:
        def again(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            summed = lax.psum(lax.pcast(carry, "data", to="varying"), "data")
            return jnp.sin(summed), None

        return lax.scan(again, x, None, length=times)[0]

    return body


@pytest.mark.parametrize("num_devices", [2, 4, 8])
@pytest.mark.parametrize("times", [1, 3])
def test_units_count_all_reduces_of_the_gradients(num_devices: int, times: int) -> None:
    step = audit(reduced(times), num_devices)
    assert step.num_devices == num_devices
    assert step.moved_units(NUM_PARAMS, param_bytes=4) == pytest.approx(times)
    assert step.moved_units(NUM_PARAMS) == pytest.approx(2 * times)
    assert step.moved_bytes == sum(total.moved_bytes for total in step.totals)


def test_one_device_moves_nothing() -> None:
    step = audit(reduced(1), 1)
    assert step.moved_bytes == 0
    assert step.moved_units(NUM_PARAMS) == 0.0


def test_text_holds_the_figures() -> None:
    step = audit(reduced(3))
    text = step.render(num_params=NUM_PARAMS)
    assert "jit_body on 8 devices" in text
    assert re.search(r"arguments +8\.19 kB", text)
    assert "6.000 of a 16-bit all-reduce" in text
    assert re.search(r"all-reduce +│ f32 +│ +1 │ +3 │ +24\.58 kB │ +43\.01 kB", text)
    assert "unknown" not in text and "branch" not in text
    assert str(step).splitlines()[0] == text.splitlines()[0]


def test_text_admits_what_it_cannot_tell() -> None:
    def body(x: jax.Array) -> jax.Array:
        def more(y: jax.Array) -> jax.Array:
            return jnp.sin(lax.psum(lax.pcast(y, "data", to="varying"), "data"))

        x = lax.while_loop(lambda y: y.sum() < 1.0, more, x)
        return lax.cond(x[0, 0] > 0.0, more, jnp.cos, x)

    step = audit(body)
    assert step.num_unknown_runs == 1
    text = step.render()
    assert "1 collectives stand in loops of unknown length" in text
    assert "as if every branch is taken" in text
