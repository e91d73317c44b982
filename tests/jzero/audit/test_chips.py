"""The table of chips: complete, sourced, and in step with the GPU targets."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib import resources

import pytest

from jzero.audit.chips import ChipError, ChipFacts, chip_facts, known_chips

QUANTITIES = {
    field.name
    for field in fields(ChipFacts)
    if field.name.endswith(("_bytes", "_per_s"))
}
GPUS = [chip for chip in known_chips() if chip_facts(chip).kind == "gpu"]


def test_eight_chips() -> None:
    assert GPUS == ["a100-40", "a100-80", "h100", "h200", "b200"]
    assert known_chips()[5:] == ("v5e", "v5p", "v6e")


@pytest.mark.parametrize("chip", known_chips())
def test_every_number_has_a_source(chip: str) -> None:
    facts = chip_facts(chip)
    assert len(QUANTITIES) == 6
    sourced = [name for source in facts.sources for name in source.of]
    assert sorted(sourced) == sorted(QUANTITIES)
    for source in facts.sources:
        assert source.url.startswith("https://")
        assert source.name


@pytest.mark.parametrize("chip", known_chips())
def test_the_nearer_the_faster(chip: str) -> None:
    facts = chip_facts(chip)
    assert facts.memory_bytes_per_s > facts.intra_bytes_per_s
    assert facts.intra_bytes_per_s > facts.inter_bytes_per_s
    assert facts.intra_bytes_per_s > facts.pcie_bytes_per_s
    # Products of large matrices are bound by arithmetic on all of them.
    assert 100 < facts.bf16_flops_per_s / facts.memory_bytes_per_s < 1000


@pytest.mark.parametrize("chip", GPUS)
def test_targets_describe_the_same_chip(chip: str) -> None:
    path = resources.files("jzero.audit") / "targets" / f"{chip}.textproto"
    text = path.read_text()
    assert "https://" in text or "data sheet" in text
    facts = chip_facts(chip)

    def number(name: str) -> float:
        found = re.findall(rf"^  {name}: ([\d.]+)$", text, re.M)
        assert len(found) == 1, name
        return float(found[0])

    # The driver counts what the data sheet rounds, and rounds down at that.
    assert 1 <= number("device_memory_size") / facts.memory_bytes < 1.08
    assert number("memory_bandwidth") == pytest.approx(
        facts.memory_bytes_per_s, rel=0.05
    )


def test_slices_exist_for_tpus_alone() -> None:
    for chip in known_chips():
        facts = chip_facts(chip)
        assert bool(facts.slice_shapes) == (facts.kind == "tpu")
        for shape in facts.slice_shapes:
            assert len(shape) == facts.num_dims


def test_patterns() -> None:
    assert chip_facts("a100-80").pattern == "a100-80:HxG"
    assert chip_facts("v5p").pattern == "v5p:AxBxC"


def test_unknown_chip_lists_the_known() -> None:
    with pytest.raises(ChipError, match=r"(?s)Unknown chip 'h1000'.*a100-40.*v6e"):
        chip_facts("h1000")
