"""Estimates, against divisions done by hand."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, PartitionSpec

from jzero.audit.chips import ChipError, chip_facts
from jzero.audit.report import audit_compiled
from jzero.audit.roofline import Transfer, estimate_seconds, transfers_of
from jzero.errors import ConfigError


def test_work_over_speed() -> None:
    step = estimate_seconds(
        "h100",
        chips_per_host=8,
        flops=2 * 989e12,
        memory_bytes_accessed=3350e9,
        transfers=[
            Transfer(moved_bytes=450e9, group_size=8),
            Transfer(moved_bytes=150e9, group_size=64),
            Transfer(moved_bytes=50e9, group_size=9),
        ],
    )
    assert step.flops_seconds == 2
    assert step.memory_seconds == 1
    assert step.compute_seconds == 2
    assert step.intra_seconds == 1
    assert step.inter_seconds == 4
    assert step.serial_seconds == 7
    assert step.overlapped_seconds == 4


def test_memory_traffic_can_be_the_limit() -> None:
    step = estimate_seconds(
        "h100", chips_per_host=8, flops=989e9, memory_bytes_accessed=3350e9
    )
    assert step.compute_seconds == 1
    assert "memory traffic" in str(step)
    unknown = estimate_seconds("h100", chips_per_host=8, flops=989e9)
    assert unknown.memory_seconds is None
    assert unknown.compute_seconds == pytest.approx(1e-3)
    assert "memory traffic unknown" in str(unknown)


def test_a_small_group_can_be_spread_over_hosts() -> None:
    def seconds(spans_hosts: bool | None) -> tuple[float, float]:
        sent = Transfer(moved_bytes=450e9, group_size=8, spans_hosts=spans_hosts)
        step = estimate_seconds("h100", chips_per_host=8, flops=0, transfers=[sent])
        return step.intra_seconds, step.inter_seconds

    assert seconds(None) == seconds(False) == (1, 0)
    assert seconds(True) == (0, 9)


def test_half_filled_hosts_are_left_sooner() -> None:
    sent = [Transfer(moved_bytes=50e9, group_size=8)]
    step = estimate_seconds("h100", chips_per_host=4, flops=0, transfers=sent)
    assert step.inter_seconds == 1


def test_a_tpu_slice_is_one_interconnect() -> None:
    sent = [Transfer(moved_bytes=600e9, group_size=1024)]
    step = estimate_seconds("v5p", chips_per_host=4, flops=459e12, transfers=sent)
    assert (step.compute_seconds, step.intra_seconds, step.inter_seconds) == (1, 1, 0)


def test_facts_can_be_given_instead_of_a_name() -> None:
    by_name = estimate_seconds("b200", chips_per_host=8, flops=1e15)
    assert estimate_seconds(chip_facts("b200"), chips_per_host=8, flops=1e15) == by_name


def test_text_says_that_it_is_an_estimate_and_nothing_ran() -> None:
    sent = [
        Transfer(moved_bytes=9e9, group_size=8),
        Transfer(moved_bytes=1e5, group_size=64),
    ]
    step = estimate_seconds("h100", chips_per_host=8, flops=989e12, transfers=sent)
    assert str(step).splitlines() == [
        "roofline estimate from the stated speeds of NVIDIA H100 SXM5 80 GB; "
        "nothing ran",
        "  computation              1.00 s   arithmetic, memory traffic unknown",
        "  sent within hosts      20.00 ms",
        "  sent between hosts       2.0 us",
        "  step, no overlap         1.02 s",
        "  step, full overlap       1.00 s",
    ]


def test_transfers_of_a_compiled_program() -> None:
    mesh = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,))
    ring = [(i, (i + 1) % 8) for i in range(8)]

    def body(x: jax.Array) -> jax.Array:
        def again(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.sin(lax.psum(carry, "data")), None

        summed = lax.scan(again, x, None, length=5)[0]
        return lax.ppermute(summed, "data", ring)

    mapped = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    x = jax.ShapeDtypeStruct((32, 64), jnp.float32)
    audit = audit_compiled(jax.jit(mapped).lower(x).compile())
    transfers = transfers_of(audit.collectives)
    leaf_bytes = 32 * 64 * 4
    assert sorted((sent.moved_bytes, sent.group_size) for sent in transfers) == [
        (leaf_bytes, 8),
        (5 * 2 * leaf_bytes * 7 // 8, 8),
    ]


@pytest.mark.parametrize(
    ("flops", "chips_per_host", "moved_bytes", "name"),
    [
        (-1.0, 8, 0.0, "flops"),
        (math.nan, 8, 0.0, "flops"),
        (1.0, 0, 0.0, "chips_per_host"),
        (1.0, 8, math.inf, r"transfers\[0\].moved_bytes"),
    ],
)
def test_impossible_quantities_are_listed(
    flops: float, chips_per_host: int, moved_bytes: float, name: str
) -> None:
    with pytest.raises(ConfigError, match=rf"\n  {name} "):
        estimate_seconds(
            "h100",
            chips_per_host=chips_per_host,
            flops=flops,
            transfers=[Transfer(moved_bytes=moved_bytes, group_size=2)],
        )


def test_unknown_chip() -> None:
    with pytest.raises(ChipError, match="Known are"):
        estimate_seconds("x9", chips_per_host=8, flops=1)
