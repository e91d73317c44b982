"""Pods that are not there, and programs that the GPU compiler builds for them."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from jzero.audit.collectives import read_collectives
from jzero.audit.pods import (
    COMPILER_OPTIONS,
    PodError,
    gpu_devices,
    parse_pod,
    pod_mesh,
)
from jzero.audit.report import audit_compiled
from jzero.audit.setup_aot import missing_wheels

ROOT = Path(__file__).resolve().parents[3]
P = PartitionSpec

needs_compiler = pytest.mark.skipif(
    bool(missing_wheels()),
    reason="the GPU compiler is not installed: python -m jzero.audit.setup_aot",
)
without_driver = pytest.mark.skipif(
    Path("/proc/driver/nvidia/version").exists(),
    reason="with an NVIDIA driver JAX does not refuse the plugin",
)


def test_names() -> None:
    pod = parse_pod("h100:128x8")
    assert (pod.chip, pod.num_hosts, pod.chips_per_host) == ("h100", 128, 8)
    assert pod.num_chips == 1024


@pytest.mark.parametrize(
    "name", ["", "h100", "h100:8", "h100:8x8x8", "h100:0x8", "h100:8x-1", "x9:1x8"]
)
def test_unknown_names_say_how_to_write_one(name: str) -> None:
    with pytest.raises(PodError, match=r"(?s)Unknown pod .*h100:8x8"):
        parse_pod(name)


@pytest.mark.parametrize("topology", ["8", "8x8", "1x0x8", "axbxc"])
def test_unknown_topologies(topology: str) -> None:
    with pytest.raises(PodError, match="slices x hosts x GPUs per host"):
        gpu_devices(topology)


def test_unknown_chip() -> None:
    with pytest.raises(PodError, match="Unknown chip 'x9'"):
        gpu_devices("1x1x8", chip="x9")


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

    audit = audit_compiled(compiled_for(pod_mesh("h100:1x8"), body))
    assert audit.num_devices == 8
    assert audit.moved_bytes == 6 * 2 * 256 * 2 * 7 // 8
    assert {fact.max_part_elems for fact in audit.collectives} == {256}
    assert sum(len(fact.parts) for fact in audit.collectives) == 6


def run_python(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    hidden = ("JAX_PLATFORMS", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "XLA_FLAGS")
    env = {key: value for key, value in os.environ.items() if key not in hidden}
    return subprocess.run(
        [sys.executable, *flags, "-c", code],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@needs_compiler
@without_driver
def test_fresh_process_needs_no_settings() -> None:
    done = run_python(
        "import os\n"
        "from jzero.audit.pods import gpu_devices\n"
        "print(len(gpu_devices('1x2x8')), dict(os.environ).get("
        "'JAX_SKIP_CUDA_CONSTRAINTS_CHECK'))"
    )
    assert done.stdout.split() == ["16", "None"], done.stderr


@needs_compiler
@without_driver
def test_plugin_refused_before_says_what_to_set() -> None:
    done = run_python(
        "import jax\n"
        "from jzero.audit.pods import PodError, gpu_devices\n"
        "jax.devices()\n"
        "try: gpu_devices('1x1x8')\n"
        "except PodError as error: print(error)"
    )
    assert "set JAX_PLATFORMS=cpu" in done.stdout, done.stderr


def test_missing_wheels_are_named_with_the_command(tmp_path: Path) -> None:
    # The installed packages but for the plugin, as links.
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("jax_cuda", "jax_plugins")):
            (tmp_path / entry.name).symlink_to(entry)
    done = run_python(
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\n"
        "from jzero.audit.pods import PodError, gpu_devices\n"
        "try: gpu_devices('1x1x8')\n"
        "except PodError as error: print(error)",
        "-S",
    )
    assert "-m pip install --no-deps" in done.stdout, done.stderr
    assert "jax-cuda13-plugin==" in done.stdout
    assert "jax-cuda13-pjrt==" in done.stdout
