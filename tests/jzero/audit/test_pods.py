"""Pods that are not there, and programs that real compilers build for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jzero
from jzero.audit.chips import chip_facts, known_chips
from jzero.audit.collectives import read_collectives
from jzero.audit.hlo import parse_module
from jzero.audit.pods import (
    COMPILER_OPTIONS,
    PodError,
    PodNameError,
    parse_pod,
    pod_mesh,
)
from tests.needs import needs_compiler, needs_libtpu

ROOT = Path(__file__).resolve().parents[3]
P = PartitionSpec


def test_names() -> None:
    pod = parse_pod("h100:128x8")
    assert (pod.chip, pod.num_hosts, pod.chips_per_host) == ("h100", 128, 8)
    assert pod.num_chips == 1024


@pytest.mark.parametrize(
    ("name", "num_chips", "num_hosts", "chips_per_host"),
    [
        ("a100-40:2x16", 32, 2, 16),
        ("a100-80:4x8", 32, 4, 8),
        ("h200:1x4", 4, 1, 4),
        ("b200:16x8", 128, 16, 8),
        ("v5e:16x16", 256, 64, 4),
        ("v5p:2x2x1", 4, 1, 4),
        ("v5p:8x8x16", 1024, 256, 4),
        ("v6e:2x4", 8, 2, 4),
    ],
)
def test_every_kind_of_name(
    name: str, num_chips: int, num_hosts: int, chips_per_host: int
) -> None:
    pod = parse_pod(name)
    assert pod.name == name
    assert (pod.num_chips, pod.num_hosts) == (num_chips, num_hosts)
    assert pod.chips_per_host == chips_per_host


def test_only_tpus_tell_of_host_memory() -> None:
    assert not parse_pod("h100:1x8").has_host_memory
    assert parse_pod("v5e:2x2").has_host_memory


def test_text_says_that_nothing_runs() -> None:
    assert str(parse_pod("b200:2x8")) == (
        "b200:2x8: 16 x NVIDIA B200 180 GB in 2 hosts, not there: compiled for, "
        "nothing runs"
    )


def test_the_document_names_pods_that_there_are() -> None:
    text = (ROOT / "docs" / "pods.md").read_text()
    names = set(re.findall(r"[a-z][a-z0-9-]*:\d+(?:x\d+)+", text))
    assert len(names) >= 4
    assert all(parse_pod(name).num_chips for name in names)
    for chip in known_chips():
        assert f"`{chip_facts(chip).pattern}`" in text


def test_public_name() -> None:
    assert jzero.pods.parse_pod("h100:1x8").num_chips == 8


@pytest.mark.parametrize(
    "name", ["", "h100", "h100:8", "h100:8x-1", "h100:8x", "H100:1x8", "x9:1x8"]
)
def test_unknown_names_list_the_known_ones(name: str) -> None:
    with pytest.raises(PodNameError, match="Unknown pod") as caught:
        parse_pod(name)
    assert isinstance(caught.value, ValueError)
    for chip in known_chips():
        assert f"  {chip}:" in str(caught.value)
    assert 'write for example "h100:8x8" or "v5e:4x4"' in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("h100:8x8x8", "h100 takes 2 numbers, not 3.\nRemedy: write h100:HxG."),
        ("v5p:4x4", "v5p takes 3 numbers, not 2.\nRemedy: write v5p:AxBxC."),
        ("v6e:2x2x1", "v6e takes 2 numbers, not 3.\nRemedy: write v6e:AxB."),
        ("h100:0x8", "it has no chips."),
        ("h100:8x0", "it has no chips."),
        ("v5e:0x4", "it has no chips."),
        ("h100:10000x8", "it is too large, 80000 chips.\nRemedy: take at most 65536"),
        ("v5e:32x32", "it is too large, 1024 chips.\nRemedy: take at most 256 chips"),
        ("v5p:16x20x28", "it is too large, 8960 chips.\nRemedy: take at most 6144"),
        ("h100:1x64", "a host has no 64 GPUs of this kind.\nRemedy: take at most 8"),
        ("v5e:2x32", "no slice of this shape.\nRemedy: take one of 2x2, 2x4, 4x4,"),
        ("v6e:6x10", "no slice of this shape.\nRemedy: take one of 2x2, 2x4, 4x4,"),
        ("v5p:2x2x3", "2x4x4, or multiples of 4 only."),
    ],
)
def test_there_is_no_such_pod(name: str, text: str) -> None:
    with pytest.raises(PodNameError) as caught:
        parse_pod(name)
    assert f"There is no pod {name!r}" in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("axis", "shape"),
    [("data", (4,)), (("data", "model"), None), (("data", "model"), (4, 4))],
)
def test_shapes_that_do_not_hold_the_pod(axis: Any, shape: Any) -> None:
    with pytest.raises(PodError, match="64 chips"):
        pod_mesh("h100:8x8", axis=axis, shape=shape)


@needs_compiler
def test_mesh_of_one_axis() -> None:
    mesh = pod_mesh("h100:2x4", axis="zero")
    assert dict(mesh.shape) == {"zero": 8}
    assert mesh.axis_types == (AxisType.Auto,)
    assert {device.platform for device in mesh.devices.flat} <= {"gpu", "cuda"}
    assert len({device.id for device in mesh.devices.flat}) == 8


@needs_compiler
def test_mesh_of_two_axes_keeps_hosts_together() -> None:
    mesh = pod_mesh("h100:2x4", axis=("data", "model"), shape=(2, 4))
    assert dict(mesh.shape) == {"data": 2, "model": 4}
    for host in mesh.devices:
        assert len({device.process_index for device in host}) == 1


def gathered_by(mesh: Any) -> list[int]:
    """Group sizes of the gathers of a product with a sharded weight."""
    rows = NamedSharding(mesh, P(mesh.axis_names))
    n = mesh.devices.size
    product = jax.jit(
        lambda x, w: jnp.tanh(x @ w), in_shardings=(rows, rows), out_shardings=rows
    )
    shapes = [(32 * n, 16 * n), (16 * n, 256)]
    lowered = product.lower(*(jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes))
    is_gpu = mesh.devices.flat[0].platform != "tpu"
    options = dict(COMPILER_OPTIONS) if is_gpu else {}
    facts = read_collectives(lowered.compile(compiler_options=options).as_text())
    return [fact.group_size for fact in facts if fact.kind == "all-gather"]


@needs_compiler
@pytest.mark.parametrize("chip", [c for c in known_chips() if c[0] != "v"])
def test_the_compiler_takes_every_gpu(chip: str) -> None:
    mesh = pod_mesh(f"{chip}:1x8")
    kinds = {device.device_kind for device in mesh.devices.flat}
    assert len(kinds) == 1
    assert chip.split("-")[0].upper() in kinds.pop()
    assert gathered_by(mesh) == [8]


@needs_libtpu
@pytest.mark.parametrize(
    ("name", "kind"),
    [("v5e:2x4", "TPU v5 lite"), ("v5p:2x2x2", "TPU v5"), ("v6e:2x4", "TPU v6 lite")],
)
def test_the_compiler_takes_every_tpu(name: str, kind: str) -> None:
    mesh = pod_mesh(name)
    assert {device.device_kind for device in mesh.devices.flat} == {kind}
    assert len({tuple(device.coords) for device in mesh.devices.flat}) == 8
    assert mesh.axis_types == (AxisType.Auto,)
    assert gathered_by(mesh) == [8]


@needs_libtpu
@pytest.mark.parametrize(
    ("name", "shape"), [("v5e:16x16", (32, 8)), ("v5p:8x8x16", (64, 16))]
)
def test_slices_hold_meshes_of_any_shape(name: str, shape: tuple[int, int]) -> None:
    mesh = pod_mesh(name, axis=("data", "model"), shape=shape)
    assert dict(mesh.shape) == {"data": shape[0], "model": shape[1]}
    num_chips = parse_pod(name).num_chips
    assert len({device.id for device in mesh.devices.flat}) == num_chips


def compiled_for(mesh: Any, body: Any) -> Any:
    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
    )
    x = jax.ShapeDtypeStruct((512, 256), jnp.bfloat16)
    return jax.jit(mapped).lower(x).compile(compiler_options=dict(COMPILER_OPTIONS))


@needs_compiler
def test_hand_counted_program_for_gpus() -> None:
    def body(x: jax.Array) -> jax.Array:
        def inner(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            gathered = lax.all_gather(jnp.sin(carry), "b")
            return lax.psum_scatter(jnp.cos(gathered), "b"), None

        def outer(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            carry = jnp.sin(lax.psum(carry, ("a", "b")))
            carry, _ = lax.scan(inner, carry, None, length=3)
            return lax.ppermute(carry, "a", [(0, 1), (1, 0)]), None

        return lax.scan(outer, x, None, length=5)[0]

    mesh = pod_mesh("h100:2x4", axis=("a", "b"), shape=(2, 4))
    facts = read_collectives(compiled_for(mesh, body).as_text())
    leaf = 512 * 256 * 2
    by_kind = {fact.kind: fact for fact in facts}
    assert len(facts) == len(by_kind) == 4
    assert {
        kind: (fact.dtype, fact.operand_bytes, fact.moved_bytes, fact.runs)
        for kind, fact in by_kind.items()
    } == {
        "all-reduce": ("bf16", leaf, 2 * leaf * 7 // 8, 5),
        "all-gather": ("bf16", leaf, 3 * leaf, 15),
        "reduce-scatter": ("bf16", 4 * leaf, 3 * leaf, 15),
        "collective-permute": ("bf16", leaf, leaf, 5),
    }
    assert by_kind["all-gather"].num_groups == 2
    assert by_kind["all-gather"].group_size == 4


@needs_compiler
def test_small_arrays_that_gpus_join_are_seen_apart() -> None:
    def body(x: jax.Array) -> Any:
        rows = [jnp.sin(x[row] * (row + 1)) for row in range(6)]
        return [lax.psum(row, "data") for row in rows]

    compiled = compiled_for(pod_mesh("h100:1x8"), body)
    module = parse_module(compiled.as_text() or "")
    facts = read_collectives(module)
    assert module.num_devices == 8
    assert sum(fact.step_moved_bytes for fact in facts) == 6 * 2 * 256 * 2 * 7 // 8
    assert {fact.max_part_elems for fact in facts} == {256}
    assert sum(len(fact.parts) for fact in facts) == 6
