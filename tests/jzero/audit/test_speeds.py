from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from jzero.audit.chips import chip_facts
from jzero.audit.pods import pod_mesh
from jzero.audit.speeds import chip_speeds, find_chip, find_speeds
from tests.needs import needs_compiler


@needs_compiler
@pytest.mark.parametrize(
    ("pod", "chip", "num_local"),
    [
        ("h100:1x8", "h100", 8),
        ("h100:4x8", "h100", 8),
        ("b200:2x4", "b200", 4),
        ("a100-80:2x8", "a100-80", 8),
    ],
)
def test_speeds_of_pods_are_the_stated_ones(
    pod: str, chip: str, num_local: int
) -> None:
    mesh = pod_mesh(pod)
    facts = chip_facts(chip)
    found = find_chip(mesh)
    assert found is not None and found.chip == chip
    speeds, name = find_speeds(mesh)
    assert name == facts.description
    assert speeds == chip_speeds(facts, num_local)
    assert speeds.flops_per_second == facts.bf16_flops_per_s
    assert speeds.memory_bytes_per_second == facts.memory_bytes_per_s
    assert speeds.local_bytes_per_second == facts.intra_bytes_per_s
    assert speeds.remote_bytes_per_second == facts.inter_bytes_per_s


def test_nothing_is_stated_of_other_devices() -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    assert find_chip(mesh) is None
    assert find_speeds(mesh) == (None, "unknown")
