"""Hand counts. On CPUs by programs for 8 devices; spellings of others by text."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, PartitionSpec

from jzero.audit.collectives import read_collectives
from jzero.audit.facts import CollectiveFacts

P = PartitionSpec
F32 = jax.ShapeDtypeStruct((8, 16), jnp.float32)  # 512 bytes


def compiled_text(body: Callable[..., Any], *shapes: Any, num_a: int = 2) -> str:
    """Compiles a body for each of 8 devices, on a mesh of axes "a" and "b"."""
    devices = np.array(jax.devices()[:8]).reshape(num_a, 8 // num_a)
    mesh = Mesh(devices, ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
    )
    return jax.jit(mapped).lower(*shapes).compile().as_text()


def count(fact: CollectiveFacts) -> tuple[str, str, int, int, int]:
    return (fact.kind, fact.dtype, fact.operand_bytes, fact.moved_bytes, fact.runs)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda x: lax.psum(x, "b"), ("all-reduce", "f32", 512, 768, 1)),
        (lambda x: lax.psum(x, ("a", "b")), ("all-reduce", "f32", 512, 896, 1)),
        (lambda x: lax.all_gather(x, "b"), ("all-gather", "f32", 512, 1536, 1)),
        (
            lambda x: lax.psum_scatter(x, "b", tiled=True),
            ("reduce-scatter", "f32", 512, 384, 1),
        ),
        (
            lambda x: lax.all_to_all(x, "b", 0, 0, tiled=True),
            ("all-to-all", "f32", 512, 384, 1),
        ),
        (
            lambda x: lax.ppermute(x, "a", [(0, 1), (1, 0)]),
            ("collective-permute", "f32", 512, 512, 1),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_each_kind(body: Callable[..., Any], expected: tuple[Any, ...]) -> None:
    (fact,) = read_collectives(compiled_text(body, F32))
    assert count(fact) == expected


@pytest.mark.parametrize(
    ("axis", "num_groups", "group_size"), [("a", 4, 2), ("b", 2, 4), (("a", "b"), 1, 8)]
)
def test_groups(axis: Any, num_groups: int, group_size: int) -> None:
    (fact,) = read_collectives(compiled_text(lambda x: lax.psum(x, axis), F32))
    assert (fact.num_groups, fact.group_size) == (num_groups, group_size)


def test_pairs_of_a_permutation() -> None:
    text = compiled_text(lambda x: lax.ppermute(x, "b", [(0, 1), (2, 3)]), F32)
    (fact,) = read_collectives(text)
    assert (fact.num_groups, fact.group_size) == (4, 2)


def test_nested_scans_multiply() -> None:
    def body(x: jax.Array) -> jax.Array:
        def inner(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            gathered = lax.all_gather(jnp.sin(carry), "b")
            return lax.psum_scatter(jnp.cos(gathered), "b"), None

        def outer(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            carry = jnp.sin(lax.psum(carry, "a"))
            return lax.scan(inner, carry, None, length=3)[0], None

        return lax.scan(outer, x, None, length=5)[0]

    facts = read_collectives(compiled_text(body, F32))
    assert sorted(map(count, facts)) == [
        ("all-gather", "f32", 512, 512 * 3, 15),
        ("all-reduce", "f32", 512, 512, 5),
        ("reduce-scatter", "f32", 2048, 2048 * 3 // 4, 15),
    ]
    assert all(fact.is_runs_known for fact in facts)
    assert sum(fact.step_moved_bytes for fact in facts) == 23040 + 2560 + 23040


def test_unknown_loops_count_once_and_say_so() -> None:
    def body(x: jax.Array) -> jax.Array:
        return lax.while_loop(
            lambda x: x.sum() < 100.0, lambda x: jnp.sin(lax.psum(x, "a")), x
        )

    (fact,) = read_collectives(compiled_text(body, F32))
    assert (fact.runs, fact.is_runs_known) == (1, False)


def test_branches_count_as_taken_and_say_so() -> None:
    def body(x: jax.Array) -> jax.Array:
        return lax.cond(
            x[0, 0] > 0.0, lambda x: lax.psum(x, "a"), lambda x: lax.psum(x, "b"), x
        )

    facts = read_collectives(compiled_text(body, F32))
    assert sorted(fact.moved_bytes for fact in facts) == [512, 768]
    assert all(fact.is_conditional and fact.runs == 1 for fact in facts)


def test_several_operands_and_dtypes() -> None:
    shapes = (F32, jax.ShapeDtypeStruct((4,), jnp.int32))

    def body(x: jax.Array, y: jax.Array) -> Any:
        return lax.psum((x, 2.0 * x[:4], y), "b")

    facts = read_collectives(compiled_text(body, *shapes))
    by_dtype = {
        dtype: [fact for fact in facts if fact.dtype == dtype]
        for dtype in ("f32", "s32")
    }
    assert sum(fact.operand_bytes for fact in by_dtype["f32"]) == 512 + 256
    assert sum(fact.operand_bytes for fact in by_dtype["s32"]) == 16
    parts = [str(part) for fact in by_dtype["f32"] for part in fact.parts]
    assert sorted(parts) == ["f32[4,16]", "f32[8,16]"]


def test_source_and_name() -> None:
    def body(x: jax.Array) -> jax.Array:
        with jax.named_scope("here"):
            return lax.psum(x, "a")

    (fact,) = read_collectives(compiled_text(body, F32))
    line = inspect.getsourcelines(body)[1] + 2
    assert fact.source == f"{Path(__file__)}:{line}"
    assert "here/psum" in fact.op_name


def test_no_collectives() -> None:
    assert read_collectives(compiled_text(lambda x: x + 1.0, F32)) == ()


def program(*lines: str, before: str = "") -> str:
    joined = "\n  ".join(lines)
    return (
        f"HloModule m, num_partitions=4\n\n{before}\n"
        f"ENTRY %main (x: f32[8], y: bf16[6]) -> f32[8] {{\n"
        "  %x = f32[8]{0} parameter(0)\n  %y = bf16[6]{0} parameter(1)\n"
        f"  {joined}\n}}\n"
    )


def test_asynchronous_pair_counts_once() -> None:
    text = program(
        "%s = ((f32[8]{0}, bf16[6]{0}), (f32[32]{0}, bf16[24]{0})) all-gather-start("
        "%x, /*index=1*/%y), replica_groups=[1,4]<=[4], dimensions={0}",
        "%d = (f32[32]{0}, bf16[24]{0}) all-gather-done(%s)",
        "ROOT %g = f32[32]{0} get-tuple-element(%d), index=0",
    )
    facts = read_collectives(text)
    assert list(map(count, facts)) == [
        ("all-gather", "f32", 32, 96, 1),
        ("all-gather", "bf16", 12, 36, 1),
    ]
    assert all(fact.is_async for fact in facts)


def test_synchronous_pair_is_not_asynchronous() -> None:
    text = program(
        "%s = f32[8]{0} all-reduce-start(%x), replica_groups={{0,1,2,3}}, "
        'backend_config={"collective_backend_config":{"is_sync":true}}',
        "ROOT %d = f32[8]{0} all-reduce-done(%s)",
    )
    (fact,) = read_collectives(text)
    assert not fact.is_async


def test_generic_asynchronous_call() -> None:
    before = (
        "%wrapped (p: f32[8]) -> f32[2] {\n"
        "  %p = f32[8]{0} parameter(0)\n"
        "  ROOT %r = f32[2]{0} reduce-scatter(%p), replica_groups={{0,1,2,3}}, "
        "dimensions={0}, to_apply=%add\n}\n"
    )
    text = program(
        "%s = ((f32[8]{0}), f32[2]{0}, u32[]) async-start(%x), calls=%wrapped",
        "ROOT %d = f32[2]{0} async-done(%s), calls=%wrapped",
        before=before,
    )
    (fact,) = read_collectives(text)
    assert count(fact) == ("reduce-scatter", "f32", 32, 24, 1)
    assert fact.is_async


def test_joined_arrays_are_seen_apart() -> None:
    before = (
        "%joined (p: f32[2,2], q: f32[4]) -> bf16[8] {\n"
        "  %p = f32[2,2]{1,0} parameter(0)\n  %q = f32[4]{0} parameter(1)\n"
        "  %b = f32[4]{0} bitcast(%p)\n"
        "  %j = f32[8]{0} concatenate(%b, %q), dimensions={0}\n"
        "  ROOT %c = bf16[8]{0} convert(%j)\n}\n"
    )
    text = program(
        "%h = f32[4]{0} slice(%x), slice={[0:4]}",
        "%f = bf16[8]{0} fusion(%h, %h), kind=kLoop, calls=%joined",
        "ROOT %r = bf16[8]{0} all-reduce(%f), replica_groups={}, to_apply=%add",
        before=before,
    )
    (fact,) = read_collectives(text)
    assert [str(shape) for shape in fact.operands] == ["bf16[8]"]
    assert [part.num_elems for part in fact.parts] == [4, 4]
    assert (fact.group_size, fact.max_part_elems) == (4, 4)


def test_tpu_spreads_one_collective_over_fusions() -> None:
    def gather(name: str) -> str:
        return (
            f"  %{name} = f32[32]{{0}} all-gather(%p), replica_groups={{{{0,1,2,3}}}}, "
            'dimensions={0}, frontend_attributes={chain_id="3"}\n'
        )

    start = (
        "%start (p: f32[8]) -> f32[32] {\n  %p = f32[8]{0} parameter(0)\n"
        + gather("g1")
        + "  ROOT %s = (f32[8]{0}, f32[32]{0:S(1)}) custom-call(%g1), "
        'custom_call_target="AsyncCollectiveStart"\n}\n'
    )
    done = (
        "%done (p: f32[8]) -> f32[32] {\n  %p = f32[8]{0} parameter(0)\n"
        + gather("g2")
        + "  ROOT %e = f32[32]{0} custom-call(%p, %g2), "
        'custom_call_target="AsyncCollectiveDone"\n}\n'
    )
    text = program(
        "%a = (f32[8]{0}, f32[32]{0}) fusion(%x), kind=kCustom, calls=%start",
        "ROOT %b = f32[32]{0} fusion(%x), kind=kCustom, calls=%done",
        before=f"{start}\n{done}",
    )
    (fact,) = read_collectives(text)
    assert (fact.name, fact.moved_bytes, fact.is_async) == ("g1", 96, True)


def test_tpu_reduce_scatter_is_a_fusion_of_an_all_reduce() -> None:
    before = (
        "%all-reduce-scatter.1 (p: f32[8]) -> f32[2] {\n"
        "  %p = f32[8]{0} parameter(0)\n"
        "  %r = f32[8]{0} all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%add\n"
        "  ROOT %s = f32[2]{0} slice(%r), slice={[0:2]}\n}\n"
    )
    text = program(
        "ROOT %f = f32[2]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1",
        before=before,
    )
    (fact,) = read_collectives(text)
    assert count(fact) == ("reduce-scatter", "f32", 32, 24, 1)


def test_host_transfers_are_not_between_devices() -> None:
    text = program(
        "%t = token[] after-all()",
        "%h = (f32[8]{0}, u32[], token[]) send(%x, %t), channel_id=1, "
        "is_host_transfer=true",
        "%s = (bf16[6]{0}, u32[], token[]) send(%y, %t), channel_id=2",
        "ROOT %n = f32[8]{0} negate(%x)",
    )
    (fact,) = read_collectives(text)
    assert count(fact) == ("send", "bf16", 12, 12, 1)


def test_ragged_exchange_counts_its_data_alone() -> None:
    text = program(
        "%i = s32[4]{0} constant({0,1,2,3})",
        "ROOT %r = f32[8]{0} ragged-all-to-all(%x, %x, %i, %i, %i, %i), "
        "replica_groups={{0,1,2,3}}",
    )
    (fact,) = read_collectives(text)
    assert count(fact) == ("ragged-all-to-all", "f32", 32, 24, 1)
