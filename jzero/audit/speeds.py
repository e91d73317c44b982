"""Stated speeds of the devices of a mesh, where they are known.

Lives here: `find_speeds`. May import: `chips`, `timeline`. Read next:
`compiled_step.py`.
"""

from __future__ import annotations

from jax.sharding import Mesh

from jzero.audit.chips import ChipFacts, chip_facts
from jzero.audit.timeline import Speeds

__all__ = ["chip_speeds", "find_chip", "find_speeds"]

# Texts of `device_kind`, the longer ones first where one begins another.
_KINDS = (
    (("A100", "40GB"), "a100-40"),
    (("A100",), "a100-80"),
    (("H100",), "h100"),
    (("H200",), "h200"),
    (("B200",), "b200"),
    (("TPU v5 lite",), "v5e"),
    (("TPU v5e",), "v5e"),
    (("TPU v5",), "v5p"),
    (("TPU v6",), "v6e"),
)


def find_chip(mesh: Mesh) -> ChipFacts | None:
    """Returns what is stated of the devices of a mesh; None of unknown ones."""
    kind = str(mesh.devices.flat[0].device_kind)
    for texts, chip in _KINDS:
        if all(text in kind for text in texts):
            return chip_facts(chip)
    return None


def chip_speeds(chip: ChipFacts, num_local: int) -> Speeds:
    """Returns the speeds of a chip, `num_local` of which share a host."""
    return Speeds(
        flops_per_second=chip.bf16_flops_per_s,
        memory_bytes_per_second=chip.memory_bytes_per_s,
        local_bytes_per_second=chip.intra_bytes_per_s,
        remote_bytes_per_second=chip.inter_bytes_per_s,
        num_local=num_local,
    )


def find_speeds(mesh: Mesh) -> tuple[Speeds | None, str]:
    """Returns (speeds, name of the device); (None, "unknown") of unknown devices."""
    chip = find_chip(mesh)
    if chip is None:
        return None, "unknown"
    devices = list(mesh.devices.flat)
    first = devices[0].process_index
    num_local = sum(device.process_index == first for device in devices)
    # All chips of a TPU slice are neighbours, whatever their hosts.
    if chip.kind == "tpu":
        num_local = len(devices)
    return chip_speeds(chip, num_local), chip.description
