"""Work that is counted by hand, in hand-written programs and in compiled ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jzero.audit.collectives import read_collectives
from jzero.audit.hlo import parse_module
from jzero.audit.pods import COMPILER_OPTIONS, pod_mesh
from jzero.audit.timeline import Speeds, play_schedule
from jzero.audit.work import Work, WorkCounter
from tests.needs import needs_compiler

TEXT = """HloModule m

%sliced (p: f32[64,128], i: s32[]) -> f32[1,128] {
  %p = f32[64,128]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  %ds = f32[1,128]{1,0} dynamic-slice(%p, %i, %zero), dynamic_slice_sizes={1,128}
  ROOT %neg = f32[1,128]{1,0} negate(%ds)
}

%read_too (p2: f32[64,128], i2: s32[]) -> f32[64,128] {
  %p2 = f32[64,128]{1,0} parameter(0)
  %i2 = s32[] parameter(1)
  %zero2 = s32[] constant(0)
  %ds2 = f32[1,128]{1,0} dynamic-slice(%p2, %i2, %zero2), dynamic_slice_sizes={1,128}
  %b2 = f32[64,128]{1,0} broadcast(%ds2), dimensions={0,1}
  ROOT %add2 = f32[64,128]{1,0} add(%p2, %b2)
}

%updated (p3: f32[64,128], u3: f32[1,128], i3: s32[]) -> f32[64,128] {
  %p3 = f32[64,128]{1,0} parameter(0)
  %u3 = f32[1,128]{1,0} parameter(1)
  %i3 = s32[] parameter(2)
  %zero3 = s32[] constant(0)
  %dus3 = f32[64,128]{1,0} dynamic-update-slice(%p3, %u3, %i3, %zero3)
  ROOT %b3 = f32[64,128]{1,0} bitcast(%dus3)
}

%multiplied (l: bf16[4,8], r: bf16[8,16]) -> bf16[4,16] {
  %l = bf16[4,8]{1,0} parameter(0)
  %r = bf16[8,16]{1,0} parameter(1)
  ROOT %d = bf16[4,16]{1,0} dot(%l, %r), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}
}

ENTRY %main (w: f32[64,128], i: s32[], u: f32[1,128], l: bf16[4,8], r: bf16[8,16]) -> \
f32[64,128] {
  %w = f32[64,128]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %u = f32[1,128]{1,0} parameter(2)
  %l = bf16[4,8]{1,0} parameter(3)
  %r = bf16[8,16]{1,0} parameter(4)
  %images = f32[2,8,8,3]{3,2,1,0} iota(), iota_dimension=0
  %kernel = f32[3,3,3,16]{3,2,1,0} iota(), iota_dimension=0
  %slice = f32[1,128]{1,0} fusion(%w, %i), kind=kLoop, calls=%sliced
  %both = f32[64,128]{1,0} fusion(%w, %i), kind=kLoop, calls=%read_too
  %update = f32[64,128]{1,0} fusion(%w, %u, %i), kind=kLoop, calls=%updated
  %dot = bf16[4,16]{1,0} dot(%l, %r), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}
  %fused = bf16[4,16]{1,0} fusion(%l, %r), kind=kOutput, calls=%multiplied
  %gemm = (bf16[4,16]{1,0}, s8[999]{0}) custom-call(%l, %r), \
custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":\
{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}
  %other = bf16[4,16]{1,0} custom-call(%l, %r), custom_call_target="sort"
  %conv = f32[2,8,8,16]{3,2,1,0} convolution(%images, %kernel), \
window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  %bare = f32[1,128]{1,0} dynamic-slice(%w, %i, %i), dynamic_slice_sizes={1,128}
  %place = f32[64,128]{1,0} dynamic-update-slice(%w, %u, %i, %i)
  ROOT %bit = f32[64,128]{1,0} bitcast(%place)
}
"""

ROW = 128 * 4
MATRIX = 64 * ROW
DOT = 2 * 4 * 16 * 8
DOT_BYTES = (4 * 8 + 8 * 16 + 4 * 16) * 2


@pytest.mark.parametrize(
    ("name", "flops", "accessed_bytes"),
    [
        ("slice", 0, ROW + 4 + ROW),  # of the matrix, one row
        ("both", 0, MATRIX + 4 + MATRIX),  # it also reads the whole of it
        ("update", 0, ROW + 4 + ROW),  # in place: reads a row and writes it
        ("dot", DOT, DOT_BYTES),
        ("fused", DOT, DOT_BYTES),
        ("gemm", DOT, DOT_BYTES + 999),
        ("other", 0, DOT_BYTES),
        ("conv", 2 * (2 * 8 * 8 * 16) * 27, (384 + 432 + 2048) * 4),
        ("bare", 0, 2 * ROW),
        ("place", 0, 2 * ROW),
        ("bit", 0, 0),
        ("w", 0, 0),
    ],
)
def test_work_of_one_instruction(name: str, flops: int, accessed_bytes: int) -> None:
    module = parse_module(TEXT)
    entry = module.entry_computation
    found = WorkCounter(module).count(entry, entry.instructions[name])
    assert found == Work(flops, accessed_bytes)


def test_sums() -> None:
    assert Work(1, 2) + Work(3, 4) == Work(4, 6)
    assert Work(1, 2).times(5) == Work(5, 10)


M, K, N, LAYERS = 256, 128, 512, 6


def scanned(x: jax.Array, ws: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w[0] @ w[1].T), None), x, ws)[0]


def flops_of(text: str) -> int:
    module = parse_module(text)
    speeds = Speeds(
        flops_per_second=1,
        memory_bytes_per_second=1,
        local_bytes_per_second=1,
        remote_bytes_per_second=1,
        num_local=8,
    )
    return play_schedule(module, read_collectives(module), speeds).work.flops


X = jax.ShapeDtypeStruct((M, K), jnp.bfloat16)
WS = jax.ShapeDtypeStruct((LAYERS, 2, K, N), jnp.bfloat16)


def test_products_in_a_loop_on_cpus() -> None:
    text = jax.jit(scanned).lower(X, WS).compile().as_text()
    assert flops_of(text or "") == LAYERS * 2 * (2 * M * K * N)


@needs_compiler
def test_products_in_a_loop_on_gpus() -> None:
    """However the compiler spells them: as a library's call or as a fusion."""
    mesh = pod_mesh("h100:1x8")
    rows, whole = (NamedSharding(mesh, PartitionSpec(s)) for s in ("data", None))
    lowered = jax.jit(scanned, in_shardings=(rows, whole)).lower(X, WS)
    text = lowered.compile(compiler_options=dict(COMPILER_OPTIONS)).as_text()
    assert flops_of(text or "") == LAYERS * 2 * (2 * M // 8 * K * N)
